"""The stage that stores a message for its targets and hands it over.

Per target, in this order: pressure → breaker → budget copy → durable store → hand over. The copies of one publish are
one record of the journal (journal/commit.py): they are stored together or not at all, and the payload is stored once.

1. Space in a mailbox is reserved in the same step as the pressure check, so that concurrent publishes cannot exceed the
   limit; the commit turns the reservation into depth or releases it.
2. A half-open breaker's permit goes with the copy that took it. While older messages wait, the oldest is the probe and
   a new message is refused.
3. Without a handler, a stored copy is the breaker's one outcome; otherwise the dispatcher records it after the
   handlers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from relay_core.clock import Clock, iso
from relay_core.config import BackpressureConfig
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.journal.commit import Commits
from relay_core.journal.segment import JournalOp
from relay_core.journal.transaction import Move, Transaction
from relay_core.messages.delivery import Delivery, Status
from relay_core.messages.envelope import Budget
from relay_core.messages.results import AdapterResult, Reason
from relay_core.messages.signals import SignalHub
from relay_core.pipeline.fanout import Fanout
from relay_core.pipeline.publication import Publication, encode_own_part
from relay_core.pipeline.routing import Target
from relay_core.records.recorder import Recorder
from relay_core.rules.backpressure import check_backpressure, pressure_signal
from relay_core.rules.breaker import CircuitBreakers, CircuitState
from relay_core.rules.budget import spend
from relay_core.rules.replies import ReplyRules
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.mailbox import Mailbox


class TargetCopy(Move):
    """One target's copy on its way into its mailbox."""

    __slots__ = ("address", "budget", "delivery", "own_part", "probe", "publication", "target")

    def __init__(
        self,
        publication: Publication,
        target: Target,
        address: str,
        spent: SpentBudget,
        delivery: Delivery,
        probe: bool,
    ) -> None:
        mailbox = target.mailbox
        self.kind = "new"
        self.mailbox = mailbox.hash
        self.maildir = mailbox.maildir
        self.message_id = publication.id
        self.publication = publication
        self.target = target
        self.address = address
        self.budget = spent.budget
        self.own_part = spent.encoded if address == spent.subject else encode_own_part(address, spent.budget)
        """What the record has of this copy alone."""
        self.delivery = delivery
        self.probe = probe

    @property
    def data(self) -> bytes:
        """Return the content of its file."""
        return self.publication.encode(self.own_part)

    @property
    def size(self) -> int:
        """Return about how many bytes it holds in memory."""
        return len(self.publication.data)

    def op(self) -> JournalOp:
        """Return the move as it is journaled: the record has what the copies share."""
        return self.kind, self.mailbox, self.message_id, self.own_part


class SpentBudget(NamedTuple):
    """The budget of a target's copy."""

    subject: str
    budget: Budget
    encoded: bytes
    """The own part of a copy that is addressed to the subject."""


class Deliver:
    """Store a copy with every target that takes one, then hand it over."""

    def __init__(
        self,
        settings: LiveConfig,
        breakers: CircuitBreakers,
        signals: SignalHub,
        commits: Commits,
        dispatch: Dispatch,
        recorder: Recorder,
        clock: Clock,
        fanouts: Callable[[Publication], Fanout],
        replies: ReplyRules,
    ) -> None:
        self.settings = settings
        self.breakers = breakers
        self.signals = signals
        self.commits = commits
        self.dispatch = dispatch
        self.recorder = recorder
        self.clock = clock
        self.fanouts = fanouts
        self.replies = replies
        self._budget: Budget | None = None
        self._spent: dict[str, SpentBudget] = {}

    def __call__(self, publication: Publication) -> Awaitable[None] | Store | None:
        """Take every target through its gates and store the copies of those that passed."""
        copies = [copy for target in publication.targets if (copy := self._prepare(publication, target))]
        if not copies:
            return None
        store = Store(self, publication, copies)
        if not self.commits.commit_now(store):
            self.commits.submit(store)
            return store
        store.raise_error()
        return store.fanout.wait() if store.fanout is not None else None

    def _prepare(self, publication: Publication, target: Target) -> TargetCopy | None:
        """Take one target through its gates; return None if it refuses."""
        mailbox = target.mailbox
        limits = self.settings.config.reliability.backpressure
        if limits.enabled:
            pressure = mailbox.load / limits.max_mailbox_size
            if pressure >= limits.pressure_warning_at or pressure >= 1.0:
                if not self._admit_under_pressure(publication, target, limits):
                    return None
            else:
                publication.note_pressure(mailbox.hash, pressure)
                self.recorder.pressure_cleared(mailbox)
        verdict = self.breakers.check(mailbox.hash)
        if verdict.state is CircuitState.CLOSED:
            probe = False
        elif not verdict.allowed:
            self._refuse(publication, target, Reason.CIRCUIT_OPEN, verdict.reason or "")
            return None
        else:
            probe = verdict.state is CircuitState.HALF_OPEN
            if probe and mailbox.depth and mailbox.is_handled:
                self.breakers.release(mailbox.hash)
                self.dispatch.wake(mailbox)
                self._refuse(publication, target, Reason.CIRCUIT_OPEN, "circuit half open: older messages are first")
                return None
        address = publication.subject
        if target.address is not None:
            address = target.address
            if address in publication.budget.ancestor_chain:
                if probe:
                    self.breakers.release(mailbox.hash)
                reason = f"cycle detected: {address} already in chain"
                self._refuse(publication, target, Reason.BUDGET_EXCEEDED, reason)
                return None
        mailbox.reserved += 1
        subject = mailbox.about.subject
        spent = self._spend(publication.budget, subject)
        delivery = publication.delivery(mailbox.hash, mailbox.about.kind, subject, Status.NEW, spent.budget)
        return TargetCopy(publication, target, address, spent, delivery, probe)

    def _spend(self, budget: Budget, subject: str) -> SpentBudget:
        """Return the budget of a target's copy; publishes of one millisecond share a budget, and so its copies."""
        if budget is not self._budget:
            self._budget, self._spent = budget, {}
        spent = self._spent.get(subject)
        if spent is None:
            copy = spend(budget, subject)
            spent = self._spent[subject] = SpentBudget(subject, copy, encode_own_part(subject, copy))
        return spent

    def _admit_under_pressure(self, publication: Publication, target: Target, limits: BackpressureConfig) -> bool:
        """Warn the sender of a mailbox that is getting full, or refuse if it is."""
        mailbox = target.mailbox
        verdict = check_backpressure(mailbox.load, limits)
        publication.note_pressure(mailbox.hash, verdict.pressure)
        signal = pressure_signal(verdict, mailbox.subject, limits, iso(publication.created_ms))
        if signal is not None:
            self.signals.emit(publication.sender, signal)
            below = limits.pressure_warning_at * limits.max_mailbox_size
            self.recorder.pressure_raised(mailbox, signal.state, verdict.current_size, limits.max_mailbox_size, below)
        if not verdict.allowed:
            self._refuse(publication, target, Reason.BACKPRESSURE, verdict.reason or "")
        return verdict.allowed

    def _refuse(self, publication: Publication, target: Target, code: str, reason: str) -> None:
        mailbox = target.mailbox
        publication.reject(mailbox.hash, code)
        if target.adapter is not None:
            publication.note_adapter(AdapterResult(adapter_id=target.adapter, status="refused", error=reason))
        delivery = publication.delivery(
            mailbox.hash, mailbox.about.kind, mailbox.subject, Status.REFUSED, publication.budget
        )
        delivery.code, delivery.reason = code, reason
        self.recorder.refused(delivery)


class Store(Transaction):
    """The copies of one publish, stored together."""

    fanout: Fanout | None = None

    def __init__(self, deliver: Deliver, publication: Publication, copies: list[TargetCopy]) -> None:
        self.message_id = publication.id
        self.message = publication.shared()
        publication.payload = None  # its bytes are enough from here on, and it may wait for its files
        self.moves = self._copies = copies
        self._deliver = deliver
        self._publication = publication
        if publication.dedupe is not None:
            self.dedupe = publication.dedupe
            self.result = self._planned_result()
        if publication.replaces is not None:
            self._replace(publication.replaces, copies)

    def _planned_result(self) -> dict[str, Any]:
        """Return the result that follows from the stored copies, for a retry after a kill."""
        delivered = 0
        for copy in self._copies:
            delivered += copy.target.weight
        result: dict[str, Any] = {"messageId": self.message_id, "deliveredTo": delivered}
        if self._publication.rejected:
            result["rejected"] = [rejection.to_wire() for rejection in self._publication.rejected]
        return result

    def _replace(self, replaced: Move, copies: list[TargetCopy]) -> None:
        """End a dead letter in the same transaction: as the copy for its own mailbox, or as an additional move."""
        for copy in copies:
            if (copy.mailbox, copy.message_id) == (replaced.mailbox, replaced.message_id):
                copy.kind = "again"
                return
        self.moves = [*copies, replaced]

    @property
    def size(self) -> int:
        """Return about how many bytes it journals: the payload once."""
        return len(self._publication.data)

    def raise_error(self) -> None:
        """Raise the error if the transaction failed.

        Raises:
            StorageError: if no copy was stored.
        """
        if self.error is not None:
            raise storage_error("store in", self._copies[0].maildir.path, self.error) from self.error

    def settle(self) -> None:
        """Hand over the copies, or release what was reserved for them."""
        if self.error is not None:
            for copy in self._copies:
                self._refused(copy, self.error)
            return
        for copy in self._copies:
            self._took(copy)

    def _took(self, copy: TargetCopy) -> None:
        deliver, publication, target, delivery = self._deliver, self._publication, copy.target, copy.delivery
        mailbox = target.mailbox
        if publication.reply_to is not None:  # before the hand-over: the answer may come immediately
            deliver.replies.sent(mailbox.subject, copy.address, publication.id, publication.reply_to)
        awaited = target.awaited is not None and publication.waits
        now = deliver.clock.monotonic()
        delivery.stored_ms = publication.created_ms + (now - publication.started) * 1000
        message = None
        if copy.probe or awaited or mailbox.wants(copy.size):
            message = publication.message(copy.address, copy.budget, copy, delivery)
            message.probe = copy.probe
            message.stored_at = now
            if awaited:
                if self.fanout is None:
                    self.fanout = deliver.fanouts(publication)
                self.fanout.expect(target)
                message.fanout = self.fanout
        mailbox.arrived(publication.id, message)
        if not awaited:
            publication.delivered += target.weight
            if target.adapter is not None:
                publication.note_adapter(AdapterResult(adapter_id=target.adapter, status="queued"))
        deliver.recorder.stored(delivery)
        if mailbox.is_handled:
            deliver.dispatch.wake(mailbox)
        else:
            deliver.breakers.record_success(mailbox.hash)

    def _refused(self, copy: TargetCopy, error: OSError) -> None:
        mailbox: Mailbox = copy.target.mailbox
        mailbox.reserved -= 1
        mailbox.degraded = str(error)
        if copy.probe:  # a disk that refuses is not the target's fault
            self._deliver.breakers.release(mailbox.hash)

"""The publish pipeline: one ordered list of stages. Reading the list is reading the specification.

::

    Validate    subject, sender, reply_to, payload                      bad input raises
    Stamp       id, time, budget (clamped; inherited from the parent)   before any refusal
    Access      first matching rule, highest priority first             AccessDenied, traced
    RateLimit   once per publish, per sender                            refused, traced
    BudgetGate  hops, cycle, TTL, calls                                 dead letter, nothing runs
    Match       endpoints, adapters, subscriptions                      targets alike
    Deliver     each target: pressure, breaker, budget copy, store      independent of each other
    Settle      what it all means                                       dead letter only if all failed

Rules:

1. Nothing is stored for a target before the last gate has passed.
2. A refusal by policy (access, rate, pressure, breaker) is never a dead letter.
3. All copies of one publish are one change: stored together, each failing for itself.
4. `publish` returns when every copy is stored; it waits longer only for adapters that answer at once.

A stage is called with the publication and returns None, or something to await. A stage that
settles the result ends the run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from relay_core.access import AccessControl, AccessRule
from relay_core.backpressure import BackpressureVerdict, check_backpressure, pressure_signal
from relay_core.breaker import CircuitBreakers, CircuitState
from relay_core.budget import clamp_budget, refuse_budget, spend
from relay_core.clock import Clock, iso
from relay_core.commit import Change, Commits
from relay_core.config import RelayConfig
from relay_core.deadletters import Code
from relay_core.dedupe import Dedupe
from relay_core.delivery import Status, TargetKind
from relay_core.dispatch import Dispatch
from relay_core.envelope import Budget
from relay_core.errors import AccessDenied
from relay_core.events import EventKind
from relay_core.fanout import Fanout
from relay_core.files import storage_error
from relay_core.index import PublishRow
from relay_core.mailbox import Item, Mailbox
from relay_core.mailboxes import Mailboxes
from relay_core.parents import Parents
from relay_core.parking import Parking
from relay_core.payload import encode_payload
from relay_core.publication import REFUSED_TARGET, Publication, Stored, Target, refused_delivery
from relay_core.ratelimit import RateLimiter
from relay_core.recorder import Recorder
from relay_core.results import AdapterResult, PublishResult, Reason
from relay_core.signals import SignalHub
from relay_core.subjects import is_pattern, subject_hash, validate_subject

ACCEPTED = "accepted"

Stage = Callable[[Publication], Awaitable[None] | None]
OpenMailbox = Callable[[str, str], Awaitable[Mailbox]]


class Settings(Protocol):
    """The configuration in force."""

    config: RelayConfig


async def run_pipeline(stages: Sequence[Stage], publication: Publication) -> PublishResult:
    """Take a publication through the stages."""
    for stage in stages:
        pending = stage(publication)
        if pending is not None:
            await pending
        if publication.result is not None:
            return publication.result
    raise AssertionError("the last stage settles")


class Validate:
    """Check everything the caller gave."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, publication: Publication) -> None:
        subject = publication.subject
        validate_subject(subject, allow_wildcards=True)
        publication.is_broadcast = is_pattern(subject)
        validate_subject(publication.sender)
        if publication.reply_to is not None:
            validate_subject(publication.reply_to)
        publication.data = encode_payload(publication.payload, limit=self._settings.config.limits.max_payload_bytes)


class Stamp:
    """Give the message its id, its time and its budget."""

    def __init__(self, settings: Settings, clock: Clock, new_id: Callable[[], str], parents: Parents) -> None:
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._parents = parents

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        publication.id = publication.trace_id = self._new_id()
        publication.created_ms = self._clock.now_ms()
        publication.started = self._clock.monotonic()
        if publication.parent_id is not None:
            return self._inherit(publication, publication.parent_id)
        self._set_budget(publication, None)
        return None

    async def _inherit(self, publication: Publication, parent_id: str) -> None:
        parent = await self._parents.find(parent_id, publication.sender)
        if parent is not None:
            publication.trace_id = parent.trace_id
        self._set_budget(publication, parent.budget if parent is not None else None)

    def _set_budget(self, publication: Publication, parent: Budget | None) -> None:
        publication.budget = clamp_budget(
            publication.created_ms, publication.overrides, self._settings.config.budget, parent
        )


class Access:
    """Ask the access rules."""

    def __init__(self, access: AccessControl, recorder: Recorder) -> None:
        self._access = access
        self._recorder = recorder

    def __call__(self, publication: Publication) -> None:
        verdict = self._access.check(publication.sender, publication.subject)
        if not verdict.allowed:
            reason = verdict.reason or "denied by an access rule"
            deny(publication, self._recorder, reason, verdict.rule)


class RateLimit:
    """Hold the sender to its limit."""

    def __init__(self, limiter: RateLimiter, recorder: Recorder) -> None:
        self._limiter = limiter
        self._recorder = recorder

    def __call__(self, publication: Publication) -> None:
        verdict = self._limiter.admit(publication.sender)
        if not verdict.allowed:
            note_refused(publication, self._recorder, Reason.RATE_LIMITED, verdict.reason or "")
            publication.reject(REFUSED_TARGET, Reason.RATE_LIMITED)
            publication.settle()


class BudgetGate:
    """Stop what has travelled too far; authoritative, before any target."""

    def __init__(self, graves: Graves, recorder: Recorder) -> None:
        self._graves = graves
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        refusal = refuse_budget(publication.budget, publication.subject, publication.created_ms)
        return self._bury(publication, *refusal) if refusal is not None else None

    async def _bury(self, publication: Publication, reason: str, code: str) -> None:
        note_publish(publication, self._recorder, Status.FAILED)
        await self._graves.bury(publication, code, reason, Status.FAILED)
        publication.reject(subject_hash(publication.subject), Reason.BUDGET_EXCEEDED)
        publication.settle()


class Match:
    """Find every target: endpoints, adapters and live subscriptions."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        access: AccessControl,
        adapters: Callable[[str, str | None], list[Target]],
        listeners: Callable[[str], int],
        open_mailbox: OpenMailbox,
        recorder: Recorder,
    ) -> None:
        self._mailboxes = mailboxes
        self._access = access
        self._adapters = adapters
        self._listeners = listeners
        self._open_mailbox = open_mailbox
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        subject = publication.subject
        if publication.is_broadcast:
            publication.targets = self._allowed(publication, self._mailboxes.select(subject))
            return None
        publication.targets = self._adapters(subject, publication.origin)
        endpoint = self._mailboxes.endpoint(subject)
        if endpoint is not None:
            publication.targets.insert(0, Target(endpoint))
        elif listeners := self._listeners(subject):
            return self._add_listeners(publication, listeners)
        return None

    async def _add_listeners(self, publication: Publication, listeners: int) -> None:
        """Keep the mail of a subscription that has no endpoint in a mailbox of its subject."""
        mailbox = await self._open_mailbox(publication.subject, TargetKind.SUBSCRIPTION)
        publication.targets.insert(0, Target(mailbox, weight=listeners))

    def _allowed(self, publication: Publication, mailboxes: list[Mailbox]) -> list[Target]:
        """Leave out the endpoints a broadcast may not reach; if none is left, it is denied."""
        targets = []
        denial = None
        for mailbox in mailboxes:
            verdict = self._access.check(publication.sender, mailbox.subject)
            if verdict.allowed:
                targets.append(Target(mailbox))
            else:
                denial = verdict
        if denial is not None and not targets:
            deny(publication, self._recorder, denial.reason or "denied by an access rule", denial.rule)
        return targets


class Deliver:
    """Store a copy with every target that takes one, then hand it over."""

    def __init__(
        self,
        settings: Settings,
        breakers: CircuitBreakers,
        signals: SignalHub,
        commits: Commits,
        dispatch: Dispatch,
        recorder: Recorder,
        clock: Clock,
        fanouts: Callable[[Publication], Fanout],
        dedupe: Dedupe,
    ) -> None:
        self._settings = settings
        self._breakers = breakers
        self._signals = signals
        self._commits = commits
        self._dispatch = dispatch
        self._recorder = recorder
        self._clock = clock
        self._fanouts = fanouts
        self._dedupe = dedupe

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        if not publication.targets:
            return None
        stored = [copy for target in publication.targets if (copy := self._prepare(publication, target))]
        return self._store(publication, stored) if stored else None

    def _prepare(self, publication: Publication, target: Target) -> Stored | None:
        """Take one target through its gates; None if it refuses."""
        mailbox = target.mailbox
        limits = self._settings.config.reliability.backpressure
        pressure = check_backpressure(mailbox.load, limits)
        if limits.enabled:
            if publication.pressure is None:
                publication.pressure = {}
            publication.pressure[mailbox.hash] = pressure.pressure
            if pressure.pressure >= limits.pressure_warning_at:
                self._warn(publication, mailbox, pressure)
            else:
                mailbox.warned = False
        if not pressure.allowed:
            self._refuse(publication, target, Reason.BACKPRESSURE, pressure.reason or "")
            return None
        verdict = self._breakers.check(mailbox.hash)
        if not verdict.allowed:
            self._refuse(publication, target, Reason.CIRCUIT_OPEN, verdict.reason or "")
            return None
        probe = verdict.state is CircuitState.HALF_OPEN
        if probe and mailbox.depth:
            # The head of the backlog is the probe; a newcomer must not take its permit.
            self._breakers.release(mailbox.hash)
            self._dispatch.kick(mailbox)
            self._refuse(publication, target, Reason.CIRCUIT_OPEN, f"circuit half open for {mailbox.hash}")
            return None
        if publication.is_broadcast and mailbox.subject in publication.budget.ancestor_chain:
            if probe:
                self._breakers.release(mailbox.hash)
            reason = f"cycle detected: {mailbox.subject} already in chain"
            self._refuse(publication, target, Reason.BUDGET_EXCEEDED, reason)
            return None
        address = mailbox.subject if publication.is_broadcast else publication.subject
        budget = spend(publication.budget, mailbox.subject)
        delivery = publication.delivery(mailbox.hash, mailbox.about.kind, mailbox.subject, Status.NEW, budget)
        mailbox.reserved += 1
        return Stored(target, budget, publication.encode(address, budget), delivery, probe)

    def _warn(self, publication: Publication, mailbox: Mailbox, pressure: BackpressureVerdict) -> None:
        config = self._settings.config.reliability.backpressure
        signal = pressure_signal(pressure, mailbox.subject, config, iso(publication.created_ms))
        if signal is not None:
            self._signals.emit(publication.sender, signal)
        if not mailbox.warned:
            mailbox.warned = True
            self._recorder.event(
                EventKind.PRESSURE,
                subject=mailbox.subject,
                target=mailbox.hash,
                status="warning",
                detail=f"{pressure.current_size}/{config.max_mailbox_size}",
            )

    def _refuse(self, publication: Publication, target: Target, code: str, reason: str) -> None:
        mailbox = target.mailbox
        publication.reject(mailbox.hash, code)
        if target.adapter is not None:
            add_adapter_result(publication, AdapterResult(adapter_id=target.adapter, status="refused", error=reason))
        delivery = publication.delivery(
            mailbox.hash, mailbox.about.kind, mailbox.subject, Status.REFUSED, publication.budget
        )
        delivery.code, delivery.reason = code, reason
        self._recorder.refused(delivery)

    async def _store(self, publication: Publication, copies: list[Stored]) -> None:
        fanout = self._fanouts(publication) if any(copy.target.awaited for copy in copies) else None
        planned = None
        if publication.dedupe is not None:
            takers = sum(copy.target.weight for copy in copies)
            planned = PublishResult(message_id=publication.id, delivered_to=takers)

        def settle(change: Change) -> None:
            if planned is not None and publication.dedupe is not None and change.error is None:
                # Before the caller can be cancelled; the exact outcome replaces it.
                self._dedupe.remember(publication.dedupe, planned)
            for position, copy in enumerate(copies):
                error = change.failure(position)
                if error is None:
                    self._took(publication, copy, fanout)
                else:
                    self._failed(publication, copy, error)

        replaces = publication.replaces
        ops = [copy.op(replaces) for copy in copies]
        if replaces is not None and not any(op.kind == "again" for op in ops):
            ops.append(replaces)
        change = Change(
            publication.id,
            ops,
            settle,
            dedupe=publication.dedupe,
            result=planned.to_wire() if planned is not None else None,
        )
        await self._commits.commit(change, atomic=replaces is not None)
        if change.error is not None:
            raise storage_error("store in", copies[0].target.mailbox.maildir.path, change.error) from change.error
        if fanout is not None:
            await fanout.wait()

    def _took(self, publication: Publication, copy: Stored, fanout: Fanout | None) -> None:
        """Count a stored copy and hand it over. Runs on the loop, in commit order."""
        target, delivery = copy.target, copy.delivery
        mailbox = target.mailbox
        now = self._clock.monotonic()
        delivery.stored_ms = publication.created_ms + (now - publication.started) * 1000
        item = None
        if copy.probe or target.awaited or mailbox.wants(len(copy.data)):
            item = publication.item(mailbox, copy.budget, copy.data, delivery)
            item.probe = copy.probe
            item.stored_at = now
            if fanout is not None and target.awaited:
                item.fanout = fanout
                fanout.expect(item, target)
        mailbox.arrived(publication.id, item)
        if not target.awaited:
            publication.delivered += target.weight
        self._recorder.stored(delivery)
        if mailbox.keep:
            self._dispatch.kick(mailbox)
        else:
            self._breakers.record_success(mailbox.hash)

    def _failed(self, publication: Publication, copy: Stored, error: OSError) -> None:
        mailbox = copy.target.mailbox
        mailbox.reserved -= 1
        mailbox.degraded = str(error)
        self._breakers.record_failure(mailbox.hash)
        if publication.unstored is None:
            publication.unstored = []
        publication.unstored.append((copy, error))


class Settle:
    """Decide what the publish has come to."""

    def __init__(self, graves: Graves, parking: Parking, recorder: Recorder) -> None:
        self._graves = graves
        self._parking = parking
        self._recorder = recorder

    def __call__(self, publication: Publication) -> Awaitable[None] | None:
        if not publication.targets:
            return self._unmatched(publication)
        if publication.unstored:
            return self._unstored(publication, publication.unstored)
        self._finish(publication)
        return None

    def _finish(self, publication: Publication) -> None:
        if publication.failures:
            status = Status.PARTIAL if publication.delivered else Status.FAILED
        else:
            status = ACCEPTED if publication.delivered else Status.REFUSED
        result = publication.settle()
        note_publish(publication, self._recorder, status, result)

    async def _unmatched(self, publication: Publication) -> None:
        note_publish(publication, self._recorder, Status.NO_SUBSCRIBER)
        await self._graves.bury(publication, Code.NO_MATCH, "no matching endpoints or adapters", Status.NO_SUBSCRIBER)
        publication.settle()

    async def _unstored(self, publication: Publication, unstored: list[tuple[Stored, OSError]]) -> None:
        """Keep the copies that could not be stored: aside if others were, else as dead letters.

        Raises:
            StorageError: if nothing was stored and nothing could be kept.
        """
        kept = 0
        for copy, error in unstored:
            mailbox = copy.target.mailbox
            item = publication.item(mailbox, copy.budget, copy.data, copy.delivery)
            reason = f"could not be stored: {error}"
            partial = publication.delivered > 0
            kept += (
                await self._parking.park(mailbox, item, code=Code.STORE_FAILED, reason=reason, partial=partial) is None
            )
            if publication.failures is None:
                publication.failures = []
            publication.failures.append(reason)
        if not publication.delivered and not kept:
            copy, error = unstored[0]
            raise storage_error("store in", copy.target.mailbox.maildir.path, error) from error
        self._finish(publication)


class Graves:
    """Bury messages that never had a target: a dead letter in their subject's own mailbox."""

    def __init__(self, open_mailbox: OpenMailbox, parking: Parking) -> None:
        self._open_mailbox = open_mailbox
        self._parking = parking

    async def bury(self, publication: Publication, code: str, reason: str, status: str) -> None:
        """Keep a message as a dead letter.

        Raises:
            StorageError: if it could not be kept.
        """
        subject = publication.subject
        mailbox = await self._open_mailbox(subject, TargetKind.NONE)
        data = publication.encode(subject, publication.budget)
        delivery = publication.delivery(mailbox.hash, TargetKind.NONE, subject, status, publication.budget)
        item = Item(publication.envelope(subject, publication.budget), data, delivery)
        error = await self._parking.park(mailbox, item, code=code, reason=reason, stage="gate", status=status)
        if error is not None:
            raise storage_error("keep the dead letter in", mailbox.maildir.path, error) from error


def deny(publication: Publication, recorder: Recorder, reason: str, rule: AccessRule | None) -> None:
    """Refuse a publish on an access rule's word.

    Raises:
        AccessDenied: always.
    """
    note_refused(publication, recorder, "access_denied", reason)
    raise AccessDenied(
        f"{publication.sender} may not publish to {publication.subject}: {reason}",
        sender=publication.sender,
        subject=publication.subject,
        rule=rule,
        message_id=publication.id,
    )


def note_publish(
    publication: Publication, recorder: Recorder, status: str, result: PublishResult | None = None
) -> None:
    """Write down a publish for rate accounting, dedupe and the event log."""
    budget = publication.budget
    recorder.published(
        PublishRow(
            publication.id,
            publication.subject,
            publication.sender,
            publication.reply_to,
            publication.created_ms,
            publication.trace_id,
            publication.parent_id,
            status,
            len(publication.data),
            publication.dedupe,
            result.to_wire() if result is not None and publication.dedupe is not None else None,
        ),
        hops=budget.hop_count,
        calls=budget.call_budget_remaining,
        started=publication.started,
    )


def note_refused(publication: Publication, recorder: Recorder, code: str, reason: str) -> None:
    """Write down a publish that was refused altogether."""
    recorder.index.note(
        PublishRow(
            publication.id,
            publication.subject,
            publication.sender,
            publication.reply_to,
            publication.created_ms,
            publication.trace_id,
            publication.parent_id,
            Status.REFUSED,
            len(publication.data),
        )
    )
    recorder.refused(refused_delivery(publication, code, reason))


def add_adapter_result(publication: Publication, result: AdapterResult) -> None:
    """Add what an adapter did to the result."""
    if publication.adapter_results is None:
        publication.adapter_results = []
    publication.adapter_results.append(result)

"""RelayCore: the bus as its users see it.

The verbs are here; the parts and their order of starting are in bus.py, the rules of publishing
in pipeline.py. All of it belongs to the event loop that entered the bus. The module is long because
it is one flat list of verbs, each a few lines.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relay_core.adapter import DRAIN_TIMEOUT_SECS, Adapter
from relay_core.adapter_host import Conceal
from relay_core.bindings import Binding
from relay_core.breaker import CircuitState
from relay_core.bus import Bus
from relay_core.clock import Clock, SystemClock, iso
from relay_core.config import RelayConfig
from relay_core.datadir import DataDir
from relay_core.deadletters import Code, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterSummary
from relay_core.dedupe import dedupe_key
from relay_core.delivery import Span, TargetKind
from relay_core.endpoints import Endpoint
from relay_core.envelope import BudgetOverrides, Envelope
from relay_core.errors import Closed, InvalidSubject, NotFound
from relay_core.files import storage_error
from relay_core.lookups import conversation, spans
from relay_core.maintenance import Maintenance
from relay_core.metrics import MetricsSnapshot
from relay_core.operations import AdapterState
from relay_core.publication import Publication
from relay_core.ratelimit import SenderUsage
from relay_core.replay import Replays
from relay_core.replay_plan import ReplayOutcome, ReplayPlan
from relay_core.results import PublishResult
from relay_core.signals import Signal, SignalHandler, SignalSubscription
from relay_core.state import MailboxState, TargetBreaker, breaker_states, mailbox_states
from relay_core.subjects import ADAPTER_PREFIX, is_pattern, subject_hash, validate_subject
from relay_core.subscriptions import Handler, Subscription
from relay_core.trace_search import TracePage, TraceSearch

_BURST = 16
_CLOSED = "the bus is closed: use it inside 'async with RelayCore(...)'"


class RelayCore:
    """A message bus over one data directory."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        config: RelayConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._data_dir = DataDir(data_dir)
        self._config = config or RelayConfig()
        self._clock = clock or SystemClock()
        self._running: Bus | None = None
        self._stack = AsyncExitStack()
        self._burst = 0

    async def __aenter__(self) -> Self:
        """Start the bus.

        Raises:
            StorageError: if the data directory cannot be used.
            ConfigError: if config.json cannot be used.
        """
        bus = Bus(self._data_dir, self._config, self._clock)
        try:
            await self._stack.enter_async_context(bus.running())
        except OSError as error:
            raise storage_error("use", Path(error.filename or self._data_dir.path), error) from error
        self._replays = Replays(bus)
        self._maintenance = Maintenance(bus)
        self._running = bus
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bus: what is under way is finished or parked, everything stored stays."""
        self._running = None
        await self._stack.aclose()

    @property
    def bus(self) -> Bus:
        """Return the running parts.

        Raises:
            Closed: if the bus is not running.
        """
        if self._running is None:
            raise Closed(_CLOSED)
        return self._running

    @property
    def replays(self) -> Replays:
        """Return the plans and runs of replays."""
        _ = self.bus  # raises Closed
        return self._replays

    @property
    def maintenance(self) -> Maintenance:
        """Return the upkeep that a scheduler calls."""
        _ = self.bus
        return self._maintenance

    # Endpoints

    async def register_endpoint(self, subject: str) -> Endpoint:
        """Give a subject a mailbox that lasts; registering it again changes nothing.

        Raises:
            InvalidSubject: if it is no concrete subject.
            StorageError: if the disk refuses.
        """
        validate_subject(subject)
        if subject.startswith(ADAPTER_PREFIX):
            raise InvalidSubject(f"{subject} is an adapter's own subject: choose another", subject=subject)
        mailbox = await self.bus.open_mailbox(subject, TargetKind.ENDPOINT, registered=True)
        return mailbox.endpoint()

    async def unregister_endpoint(self, subject: str) -> None:
        """Stop routing to a subject; its mail stays on disk.

        Raises:
            NotFound: if it is not registered.
        """
        mailbox = self.bus.mailboxes.endpoint(subject)
        if mailbox is None:
            raise NotFound(f"no endpoint {subject}", what=subject)
        self.bus.mailboxes.unregister(mailbox)
        self.bus.replies.ended(subject)
        self.bus.listen(mailbox)

    def endpoints(self) -> list[Endpoint]:
        """Return every registered endpoint, by subject."""
        return [mailbox.endpoint() for mailbox in self.bus.mailboxes.endpoints()]

    # Publishing and subscribing

    async def publish(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
    ) -> PublishResult:
        """Publish a message to a subject, or to every endpoint a pattern matches.

        Raises:
            InvalidSubject, InvalidPayload: if the input breaks a rule; nothing is stored.
            AccessDenied: if an access rule forbids it, or it is to a person and no binding allows it.
            StorageError: if the disk refuses; nothing is acknowledged.
            Closed: if the bus is closed.
        """
        bus = self._running
        if bus is None:
            raise Closed(_CLOSED)
        publication = Publication(subject, payload, sender)
        if reply_to is not None:
            publication.reply_to = reply_to
        if budget is not None:
            publication.overrides = budget
        if parent_id is not None:
            publication.parent_id = parent_id
        if dedupe_id is not None:
            publication.dedupe = dedupe_key(sender, dedupe_id)
        # Storing without fsync never waits, so a publisher in a loop must let others in by itself.
        self._burst += 1
        if self._burst >= _BURST:
            self._burst = 0
            await asyncio.sleep(0)
        return await bus.publish(publication)

    async def subscribe(
        self, pattern: str, handler: Handler, *, max_in_flight: int | None = None, queue: str | None = None
    ) -> Subscription:
        """Handle the messages of a subject or a pattern, those that wait already first.

        Each mailbox has one message in the handler's hands at a time; `max_in_flight` bounds them over all mailboxes.

        Subscriptions with the same `queue` share the messages, one each, and `max_in_flight` is 1 if it is not given.
        Where nobody else listens, the next message begins while the one before is still with another of them.

        Raises:
            InvalidSubject: if the pattern, or the queue's name, breaks the naming rules.
        """
        bus = self.bus
        created_at = iso(bus.clock.now_ms())
        subscription = bus.subscriptions.add(bus.new_id(), pattern, created_at, handler, max_in_flight, queue)
        subscription.on_change = self._listen
        self._listen(subscription)
        return subscription

    def subscriptions(self) -> list[Subscription]:
        """Return every live subscription, oldest first."""
        return self.bus.subscriptions.all()

    def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to whoever listens right now; it is never stored.

        Raises:
            AccessDenied: if the subject is a person to whom the one it is about is not bound.
        """
        self.bus.signal(subject, signal)

    def on_signal(self, pattern: str, handler: SignalHandler) -> SignalSubscription:
        """Call `handler(subject, signal)` for the signals of a pattern, until it is closed."""
        return self.bus.signals.on(pattern, handler)

    # Adapters

    async def add_adapter(self, adapter: Adapter, *, conceal: Conceal = str) -> AdapterState:
        """Start an adapter and give it the messages of its patterns, those that wait already first.

        Every text of the adapter goes through `conceal`, which cuts out its secrets, before anybody sees it.

        Raises:
            ConfigError: if it has not the shape of an adapter, or its id is taken.
            RelayError: with code `adapter_failed`, if it does not start.
        """
        return await self.bus.adapters.add(adapter, conceal=conceal)

    async def replace_adapter(
        self, adapter: Adapter, *, drain_timeout: float | None = None, conceal: Conceal = str
    ) -> AdapterState:
        """Start an adapter, put it in the place of the one with the same id, and stop that one.

        Raises:
            ConfigError, RelayError: as `add_adapter`; the old one stays then.
            NotFound: if there is none to replace.
        """
        return await self.bus.adapters.replace(adapter, drain_timeout=drain_timeout, conceal=conceal)

    async def remove_adapter(self, adapter_id: str, *, drain_timeout: float = DRAIN_TIMEOUT_SECS) -> None:
        """Stop an adapter once it has finished its message; its mail stays on disk.

        Raises:
            NotFound: if there is none.
        """
        await self.bus.adapters.remove(adapter_id, drain_timeout=drain_timeout)

    def set_bindings(self, bindings: Sequence[Binding]) -> None:
        """Say which agents belong to which chats from now on."""
        self.bus.bindings.replace(bindings)

    def bindings(self) -> list[Binding]:
        """Return which agents belong to which chats, in their order."""
        return self.bus.bindings.all()

    def adapters(self) -> list[AdapterState]:
        """Return how every adapter is doing, by id."""
        return self.bus.adapters.states()

    async def probe_adapters(self, adapter_id: str | None = None) -> list[AdapterState]:
        """Ask one adapter, or all, whether they are well.

        Raises:
            NotFound: if there is none with that id.
        """
        return await self.bus.adapters.probe(adapter_id)

    # Pull consumers

    async def inbox(
        self, subject: str, limit: int = 50, *, room: int | None = None, after: str | None = None
    ) -> list[Envelope]:
        """Look at the oldest waiting messages without taking them; at most `room` bytes of them, but one at least.

        With `after` it is those whose id comes after it.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.pull.peek(subject, limit, room=room, after=after or "")

    async def wait_inbox(
        self, subject: str, limit: int = 50, *, after: str | None = None, answer_to: str | None = None
    ) -> list[str]:
        """Return the ids of waiting messages, when there are any, without taking them.

        With `after` it is those whose id comes after it, with `answer_to` the answers to that message.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.pull.wait(subject, limit, after=after or "", answer_to=answer_to)

    async def claim(self, subject: str, limit: int = 1, *, ids: Iterable[str] | None = None) -> list[Envelope]:
        """Take the oldest waiting messages, or those with these ids; each must be completed or failed.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.pull.claim(subject, limit, ids=ids)

    async def complete(self, subject: str, message_id: str, *, late: bool = False) -> bool:
        """Finish a claimed message; return whether it was late.

        With `late` also one that was parked meanwhile because its consumer was gone: the dead letter ends then.

        Raises:
            NotFound: if nobody has claimed it.
        """
        return await self.bus.pull.complete(subject, message_id, late=late)

    async def fail(self, subject: str, message_id: str, reason: str, *, code: str = Code.CONSUMER_FAILED) -> None:
        """Make a dead letter of a claimed message.

        Raises:
            NotFound: if nobody has claimed it.
            StorageError: if the disk refuses; it stays claimed.
        """
        await self.bus.pull.fail(subject, message_id, reason, code)

    # Dead letters and replay

    async def dead_letters(
        self,
        endpoint: str | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        include_partial: bool = False,
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given.

        The kept copies of partial deliveries come too if asked for.
        """
        return await self.bus.dead_letters.all(endpoint, filter=filter, include_partial=include_partial)

    async def dead_letter_page(
        self, filter: DeadLetterFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> tuple[list[DeadLetterSummary], int | None, str | None]:
        """Return a page of summaries, newest first, the number of all, and the cursor of the next page.

        A filter that asks for a body is answered piece by piece: the number is None, and a page may be short.
        """
        return await self.bus.dead_letters.page(filter, after=after, limit=limit)

    async def dead_letter_groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, largest group first."""
        return await self.bus.dead_letters.groups()

    async def plan_replay(
        self,
        ids: Iterable[str] | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        fresh_budget: bool = False,
    ) -> ReplayPlan:
        """Freeze a selection of dead letters and say what a replay would do with each.

        Raises:
            NotFound: if an id was never a dead letter.
        """
        return await self.replays.plan(ids=ids, filter=filter, fresh_budget=fresh_budget)

    async def run_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayOutcome:
        """Carry out a plan and return what became of it.

        Raises:
            NotFound: if there is no such plan, or it has been run.
        """
        return await self.replays.start(plan_id, rate=rate, canary=canary).wait()

    async def purge_dead_letters(
        self,
        older_than: int | timedelta | None = None,
        ids: Iterable[str] | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        plan_id: str | None = None,
    ) -> int:
        """Remove dead letters that failed before an instant (epoch ms) or an age, or by id; all if neither is given.

        With a plan it is those that it has frozen, as far as they are there, have not failed again since, and the
        other conditions hold.

        Raises:
            NotFound: if there is no such plan.
        """
        if isinstance(older_than, timedelta):
            older_than = self._clock.now_ms() - int(older_than.total_seconds() * 1000)
        store = self.bus.dead_letters
        meant = store.select(filter, ids=ids, older_than_ms=older_than)
        if plan_id is None:
            return await store.purge(await store.keys(meant), meant)
        plan = self.replays.frozen(plan_id)
        return await store.purge(plan.keys(), meant, plan)

    async def export_dead_letters(
        self,
        filter: DeadLetterFilter | None = None,
        *,
        plan_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
        room: int,
    ) -> tuple[list[DeadLetter], str | None]:
        """Return whole dead letters after a cursor, oldest first, at most `room` bytes, and the cursor of what follows.

        Raises:
            NotFound: if there is no such plan.
        """
        store = self.bus.dead_letters
        meant = store.select(filter)
        plan = self.replays.frozen(plan_id) if plan_id is not None else None
        keys = await store.keys(meant) if plan is None else plan.keys()
        return await store.export(keys, meant, after=after, limit=limit, room=room, plan=plan)

    # Seeing what goes on

    async def trace(self, message_id: str) -> list[Span]:
        """Return what became of a message, one span per target."""
        return await self.bus.index.run(lambda db: spans(db, message_id))

    async def search_traces(self, wanted: TraceSearch) -> TracePage:
        """Return a page of messages and what became of them, newest first."""
        return await self.bus.index.run(wanted.page)

    async def conversation(self, trace_id: str) -> list[Span]:
        """Return the spans of every message that followed from one."""
        return await self.bus.index.run(lambda db: conversation(db, trace_id))

    def metrics(self) -> MetricsSnapshot:
        """Return what has been counted since the start."""
        return self.bus.metrics.snapshot()

    def breakers(self) -> list[TargetBreaker]:
        """Return every breaker."""
        return breaker_states(self.bus)

    def reset_breaker(self, target: str, why: str = "reset by the operator") -> None:
        """Close a target's breaker (subject or hash)."""
        self.bus.breakers.reset(self._target(target), why)

    def force_breaker(self, target: str, state: CircuitState, why: str) -> None:
        """Hold a target's breaker open, or close it, until it is reset."""
        self.bus.breakers.force(self._target(target), state, why)

    def mailboxes(self) -> list[MailboxState]:
        """Return the state of every mailbox, by subject."""
        return mailbox_states(self.bus)

    def senders(self) -> list[SenderUsage]:
        """Return what each sender has used of its limit."""
        return self.bus.limiter.usage()

    async def rebuild_index(self) -> None:
        """Build the index anew from the Maildir and swap it in."""
        await self.bus.index.rebuild()

    async def idle(self) -> None:
        """Return when every dispatcher has nothing left to do."""
        await self.bus.dispatch.idle()

    def _listen(self, subscription: Subscription) -> None:
        """Let the mailboxes that a subscription hears know that it came or went."""
        bus = self._running
        if bus is None:
            return
        if is_pattern(subscription.pattern):
            heard = bus.mailboxes.heard_by(subscription.pattern)
        else:
            known = bus.mailboxes.get(subject_hash(subscription.pattern))
            heard = [known] if known is not None else []
        for mailbox in heard:
            bus.listen(mailbox)

    def _target(self, target: str) -> str:
        mailbox = self.bus.mailboxes.find(target)
        if mailbox is None:
            raise NotFound(f"no target {target}", what=target)
        return mailbox.hash

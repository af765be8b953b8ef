"""RelayCore: the public interface of the bus, one flat list of verbs.

The parts and the order in which they start are in bus.py, the rules of publishing in pipeline/. A bus belongs to the
event loop that entered it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from relay_core.adapters.host import Redact
from relay_core.adapters.interface import Adapter
from relay_core.adapters.validation import NO_SETTINGS, AdapterSettings
from relay_core.bus import Bus
from relay_core.clock import Clock, SystemClock, iso
from relay_core.config import RelayConfig
from relay_core.deadletters.replay import Replays
from relay_core.dispatch.subscriptions import Handler, Subscription
from relay_core.errors import Closed, InvalidSubject, NotFound
from relay_core.journal.commit import PublishBatch
from relay_core.maintenance import Maintenance
from relay_core.messages.dead_letter import Code, DeadLetter, DeadLetterFilter, DeadLetterGroup, DeadLetterSummary
from relay_core.messages.delivery import Delivery, Span, TargetKind, TracePage, TraceSearch
from relay_core.messages.envelope import BudgetOverrides, Envelope
from relay_core.messages.operator_views import AdapterState
from relay_core.messages.replay_plan import ReplayOutcome, ReplayPlan
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalHandler, SignalSubscription
from relay_core.messages.subjects import ADAPTER_PREFIX, subject_hash, validate_subject
from relay_core.operator_state import MailboxRow, read_breakers, read_journal, read_mailbox, read_throughput
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publisher import BegunPublish
from relay_core.protocol.live_state import LiveThroughput
from relay_core.protocol.state import JournalState, MailboxState, TargetBreaker
from relay_core.records.event_log import EventLog
from relay_core.records.metrics import MetricsSnapshot
from relay_core.records.queries import conversation, spans
from relay_core.records.trace_search import search_traces
from relay_core.rules.access import AccessRule, AccessVerdict
from relay_core.rules.bindings import Binding
from relay_core.rules.breaker import CircuitState
from relay_core.rules.rate_limit import SenderUsage
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.data_dir import DataDir
from relay_core.storage.endpoint_file import Endpoint

_BURST = 16
_CLOSED = "the bus is closed: call start(), or use it inside 'async with RelayCore(...)'"


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
        """Start the bus; see `start`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bus; see `close`."""
        await self.close()

    async def start(self) -> None:
        """Start the bus, unless it is running.

        Raises:
            StorageError: if the data directory cannot be used.
            ConfigError: if config.json cannot be used.
        """
        if self._running is not None:
            return
        bus = Bus(self._data_dir, self._config, self._clock)
        try:
            await self._stack.enter_async_context(bus.running())
        except OSError as error:
            raise storage_error("use", Path(error.filename or self._data_dir.path), error) from error
        self._maintenance = Maintenance(bus)
        self._running = bus

    async def close(self) -> None:
        """Stop the bus: messages in flight are finished or dead-lettered, everything stored stays.

        Closing it again does nothing. Every other verb raises `Closed` from then on, until it is started again.
        """
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
        return self.bus.replays

    @property
    def maintenance(self) -> Maintenance:
        """Return the maintenance that a scheduler calls."""
        _ = self.bus
        return self._maintenance

    @property
    def events(self) -> EventLog:
        """Return the event log."""
        return self.bus.events

    # Configuration

    @property
    def config(self) -> RelayConfig:
        """Return the configuration in force."""
        return self.bus.config

    @property
    def config_problem(self) -> str | None:
        """Return why the present config.json is not in force, or None."""
        return self.bus.settings.problem

    @property
    def durability(self) -> str:
        """Return the durability in force until the next start."""
        return self.bus.durability

    @property
    def clock(self) -> Clock:
        """Return the clock of the bus."""
        return self._clock

    @property
    def data_dir(self) -> DataDir:
        """Return the data directory."""
        return self._data_dir

    def reload(self) -> None:
        """Read the operator's files again; while one is invalid, the last valid one stays in force."""
        self.bus.reload()

    def report_problem(self, file: str, problem: str | None, *, adapter: str | None = None) -> None:
        """Signal and record a problem with an operator's file, or its end (None); a repetition is ignored."""
        self.bus.problems.report(file, problem, adapter=adapter)

    def on_reload(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever the operator's files have been read again."""
        self.bus.on_reload = callback

    def new_id(self) -> str:
        """Return a new ULID, greater than all before."""
        return self.bus.new_id()

    # Access rules

    def access_rules(self) -> list[AccessRule]:
        """Return the access rules in the order of the file."""
        return self.bus.access.rules()

    @property
    def access_problem(self) -> str | None:
        """Return the problem with access-rules.json, or None; while it is invalid, everything is denied."""
        return self.bus.access.broken

    def check_access(self, sender: str, subject: str) -> AccessVerdict:
        """Return whether the access rules allow a sender to publish to a subject."""
        return self.bus.access.check(sender, subject)

    async def add_access_rule(self, rule: AccessRule) -> None:
        """Append a rule to access-rules.json, unless it is there already.

        Raises:
            ConfigError: while the file is invalid.
            StorageError: if it cannot be written; the rules are unchanged.
        """
        await asyncio.to_thread(self.bus.access.add_rule, rule)

    async def remove_access_rule(self, sender: str, to: str) -> int:
        """Remove every rule with exactly these patterns and return how many there were.

        Raises:
            ConfigError, StorageError: as `add_access_rule`.
        """
        return await asyncio.to_thread(self.bus.access.remove_rule, sender, to)

    # Endpoints

    async def register_endpoint(self, subject: str) -> Endpoint:
        """Give a subject a durable mailbox; registering it again changes nothing.

        Raises:
            InvalidSubject: if it is not a concrete subject.
            StorageError: if the disk refuses.
        """
        validate_subject(subject)
        if subject.startswith(ADAPTER_PREFIX):
            raise InvalidSubject(f"{subject} is an adapter's own subject: choose another", subject=subject)
        mailbox = await self.bus.lifecycle.open(subject, TargetKind.ENDPOINT, registered=True)
        return mailbox.endpoint()

    async def unregister_endpoint(self, subject: str) -> None:
        """Stop routing to a subject; its messages stay on disk.

        Raises:
            NotFound: if it is not registered.
        """
        mailbox = self.bus.mailboxes.endpoint(subject)
        if mailbox is None:
            raise NotFound(f"no endpoint {subject}", what=subject)
        self.bus.mailboxes.unregister(mailbox)
        self.bus.replies.ended(subject)
        self.bus.dispatch.refresh(mailbox)

    def endpoints(self) -> list[Endpoint]:
        """Return every registered endpoint, by subject."""
        return [mailbox.endpoint() for mailbox in self.bus.mailboxes.endpoints()]

    def endpoint(self, subject: str) -> Endpoint | None:
        """Return the endpoint of a subject, or None if it is not registered."""
        mailbox = self.bus.mailboxes.endpoint(subject)
        return mailbox.endpoint() if mailbox is not None else None

    def endpoint_subjects(self) -> list[str]:
        """Return the sorted subjects of all endpoints except reply mailboxes; do not modify the list."""
        return self.bus.mailboxes.names()

    def count_endpoints(self, pattern: str) -> int:
        """Return how many endpoints a pattern matches, reply mailboxes not counted."""
        return len(self.bus.mailboxes.select(pattern))

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
        begun = self.begin_publish(
            subject,
            payload,
            sender=sender,
            reply_to=reply_to,
            budget=budget,
            parent_id=parent_id,
            dedupe_id=dedupe_id,
        )
        result = begun if isinstance(begun, PublishResult) else await begun
        # Storing without fsync never waits, so a publisher in a loop must let others run. Only afterwards: publishes
        # that were started together keep their order.
        self._burst += 1
        if self._burst >= _BURST:
            self._burst = 0
            await asyncio.sleep(0)
        return result

    def begin_publish(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
        reader: str | None = None,
    ) -> BegunPublish:
        """Publish as far as nothing has to be waited for; return the result, or a pending publish to await.

        For callers with many publishes in flight, such as the supervisor; `reader` is the client that publishes it, as
        `note_reader` knows it. Raises the errors of `publish`.
        """
        if self._running is None:
            raise Closed(_CLOSED)
        return self._running.publisher.begin(
            Publication(
                subject,
                payload,
                sender,
                reply_to=reply_to,
                overrides=budget,
                parent_id=parent_id,
                dedupe_id=dedupe_id,
                reader=reader,
            )
        )

    def batch(self) -> PublishBatch:
        """Store the publishes that are begun in a `with` statement together, after it: `begin_publish` alone."""
        return self.bus.commits.batch()

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Call back each time publishes were stored and have their outcomes, or messages were handed over."""
        self.bus.dispatch.on_turn = callback

    def count_matching(self, pattern: str) -> int:
        """Return the number of endpoints that a publish to a pattern reaches, whatever the access rules."""
        return len(self.bus.mailboxes.select(pattern))

    async def subscribe(
        self, pattern: str, handler: Handler, *, max_in_flight: int | None = None, queue: str | None = None
    ) -> Subscription:
        """Handle the messages of a subject or a pattern, waiting ones first.

        Each mailbox has one message in flight at a time; `max_in_flight` bounds them over all mailboxes.

        Subscriptions with the same `queue` share the messages, one each, and `max_in_flight` defaults to 1. Without
        other consumers, the next message of a mailbox begins while another member still handles the previous one.

        Raises:
            InvalidSubject: if the pattern, or the queue's name, breaks the naming rules.
        """
        bus = self.bus
        created_at = iso(bus.clock.now_ms())
        subscription = bus.subscriptions.add(bus.new_id(), pattern, created_at, handler, max_in_flight, queue)
        subscription.on_change = self._refresh
        self._refresh(subscription)
        return subscription

    def subscriptions(self) -> list[Subscription]:
        """Return every live subscription, oldest first."""
        return self.bus.subscriptions.all()

    def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to the current listeners; it is never stored.

        Raises:
            AccessDenied: if the subject is a person, and the signal's endpoint is not bound to that person.
        """
        self.bus.signal_sender.send(subject, signal)

    def on_signal(self, pattern: str, handler: SignalHandler) -> SignalSubscription:
        """Call `handler(subject, signal)` for the signals of a pattern, until it is closed."""
        return self.bus.signals.on(pattern, handler)

    # Adapters

    async def add_adapter(
        self, adapter: Adapter, *, redact: Redact = str, settings: AdapterSettings = NO_SETTINGS
    ) -> AdapterState:
        """Start an adapter and give it the messages of its patterns, waiting ones first.

        Every text of the adapter passes through `redact`, which removes its secrets, before it is shown. The operator's
        `settings` win over its attributes.

        Raises:
            ConfigError: if it does not implement Adapter, or its id is taken.
            RelayError: with code `adapter_failed`, if it does not start.
        """
        return await self.bus.adapters.add(adapter, redact=redact, settings=settings)

    async def replace_adapter(
        self,
        adapter: Adapter,
        *,
        drain_timeout: float | None = None,
        redact: Redact = str,
        settings: AdapterSettings = NO_SETTINGS,
    ) -> AdapterState:
        """Start an adapter in place of the running one with the same id, and stop that one.

        Raises:
            ConfigError, RelayError: as `add_adapter`; the running one stays in place.
            NotFound: if none with this id is running.
        """
        return await self.bus.adapters.replace(adapter, drain_timeout=drain_timeout, redact=redact, settings=settings)

    async def remove_adapter(self, adapter_id: str, *, drain_timeout: float | None = None) -> None:
        """Stop an adapter once it has finished its message; waiting messages stay on disk.

        Raises:
            NotFound: if there is none with this id.
        """
        await self.bus.adapters.remove(adapter_id, drain_timeout=drain_timeout)

    def set_bindings(self, bindings: Sequence[Binding]) -> None:
        """Replace the bindings of agents to chats."""
        self.bus.bindings.replace(bindings)

    def bindings(self) -> list[Binding]:
        """Return the bindings of agents to chats, in their order."""
        return self.bus.bindings.all()

    def adapters(self) -> list[AdapterState]:
        """Return the state of every adapter, by id."""
        return self.bus.adapters.states()

    async def probe_adapters(self, adapter_id: str | None = None) -> list[AdapterState]:
        """Run the health probe of one adapter, or of all.

        Raises:
            NotFound: if there is none with this id.
        """
        return await self.bus.adapters.probe(adapter_id)

    def hold_adapters(self) -> AbstractContextManager[None]:
        """Accept no messages from adapters within a `with` statement; they wait."""
        return self.bus.adapters.held()

    def owner_of_sender(self, sender: str) -> str | None:
        """Return the id of the adapter that alone may publish as a sender, or None."""
        return self.bus.routes.owner_of_sender(sender)

    def people(self, agent: str) -> list[str]:
        """Return the people to whom the bindings let an agent write."""
        return self.bus.bindings.people(agent)

    # Pull consumers

    async def inbox(
        self, subject: str, limit: int = 50, *, room: int | None = None, after: str | None = None
    ) -> list[Envelope]:
        """Return the oldest waiting messages without claiming them: at most `room` bytes, but at least one.

        With `after`, only messages with a greater id.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.inbox.peek(subject, limit, room=room, after=after or "")

    async def wait_inbox(
        self, subject: str, limit: int = 50, *, after: str | None = None, answer_to: str | None = None
    ) -> list[str]:
        """Wait until there are waiting messages, and return their ids without claiming them.

        With `after`, only messages with a greater id; with `answer_to`, only answers to that message.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.inbox.wait(subject, limit, after=after or "", answer_to=answer_to)

    async def claim(self, subject: str, limit: int = 1, *, ids: Iterable[str] | None = None) -> list[Envelope]:
        """Claim the oldest waiting messages, or those with these ids; each must be completed or failed.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        return await self.bus.inbox.claim(subject, limit, ids=ids)

    async def complete(self, subject: str, message_id: str, *, late: bool = False) -> bool:
        """Finish a claimed message; return True if it was late.

        With `late`, finish it even if it was dead-lettered meanwhile because its consumer was gone.

        Raises:
            NotFound: if it is not claimed.
        """
        return await self.bus.inbox.complete(subject, message_id, late=late)

    async def fail(self, subject: str, message_id: str, reason: str, *, code: str = Code.CONSUMER_FAILED) -> None:
        """Dead-letter a claimed message.

        Raises:
            NotFound: if it is not claimed.
            StorageError: if the disk refuses; it stays claimed.
        """
        await self.bus.inbox.fail(subject, message_id, reason, code)

    async def abandon(self, subject: str, message_id: str, reason: str, *, code: str) -> None:
        """Dead-letter a claimed message whose consumer is gone, as soon as the disk allows it.

        Raises:
            NotFound: if the subject has no mailbox.
        """
        await self.bus.inbox.abandon(subject, message_id, reason, code)

    def may_answer(self, mailbox: str, sender: str, reader: str, *, parent_id: str | None, payload: Any) -> bool:
        """Return True if a publish by a client may go to a reply mailbox: it answers a question the client received."""
        return self.bus.replies.may_answer(mailbox, sender, reader, parent_id=parent_id, payload=payload)

    def note_reader(self, envelope: Envelope, reader: str) -> None:
        """Record that a client was given a message: it may answer to the message's reply mailbox."""
        self.bus.replies.read(envelope, reader)

    # Dead letters and replay

    async def dead_letters(
        self,
        endpoint: str | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        include_partial: bool = False,
    ) -> list[DeadLetter]:
        """Return dead letters, oldest first; of one endpoint (subject or hash) if given.

        `include_partial` adds the kept copies of partial deliveries.
        """
        return await self.bus.dead_letters.all(endpoint, filter=filter, include_partial=include_partial)

    async def dead_letter_page(
        self, filter: DeadLetterFilter | None = None, *, after: str | None = None, limit: int = 100
    ) -> tuple[list[DeadLetterSummary], int | None, str | None]:
        """Return a page of summaries, newest first, the number of all, and the cursor of the next page.

        With a filter on the body, the number is None and a page may be short.
        """
        return await self.bus.dead_letters.page(filter, after=after, limit=limit)

    async def browse_dead_letters(
        self, filter: DeadLetterFilter | None = None, *, after: str | None = None, limit: int = 100, room: int
    ) -> tuple[list[DeadLetter], int, str | None]:
        """Return a page of whole dead letters, newest first, the number of all, and the cursor of the next page.

        The page has at most `room` bytes, but at least one dead letter.
        """
        return await self.bus.dead_letters.browse(filter, after=after, limit=limit, room=room)

    async def dead_letter(self, message_id: str, endpoint: str | None = None) -> DeadLetter:
        """Return one dead letter, of an endpoint (subject or hash) if given.

        Raises:
            NotFound: if there is none with this id.
        """
        return (await asyncio.to_thread(self.bus.dead_letters.find, message_id, endpoint))[1]

    async def dead_letter_groups(self) -> list[DeadLetterGroup]:
        """Return the dead letters by code and target, largest group first."""
        return await self.bus.dead_letters.groups()

    def dead_letters_version(self) -> tuple[int, ...]:
        """Return a value that changes whenever `dead_letter_groups` may return something else."""
        bus = self.bus
        dead = sum(mailbox.dead for mailbox in bus.mailboxes)
        return sum(bus.metrics.dead_letters.values()), dead, bus.index.dirty, bus.index.repairs

    async def plan_replay(
        self,
        ids: Iterable[str] | None = None,
        *,
        filter: DeadLetterFilter | None = None,
        fresh_budget: bool = False,
    ) -> ReplayPlan:
        """Freeze a selection of dead letters and predict the outcome of a replay for each.

        Raises:
            NotFound: if an id was never a dead letter.
        """
        return await self.replays.plan(ids=ids, filter=filter, fresh_budget=fresh_budget)

    async def run_replay(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayOutcome:
        """Run a plan to its end and return the outcome.

        Raises:
            NotFound: if there is no such plan, or it was already run.
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

        With a plan, only those that it has frozen and that have not failed again since.

        Raises:
            NotFound: if there is no such plan.
        """
        if isinstance(older_than, timedelta):
            older_than = self._clock.now_ms() - int(older_than.total_seconds() * 1000)
        store = self.bus.dead_letters
        selection = store.select(filter, ids=ids, older_than_ms=older_than)
        if plan_id is None:
            return await store.purge(await store.keys(selection), selection)
        plan = self.replays.frozen(plan_id)
        return await store.purge(plan.keys(), selection, plan)

    async def export_dead_letters(
        self,
        filter: DeadLetterFilter | None = None,
        *,
        plan_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
        room: int,
    ) -> tuple[list[DeadLetter], str | None]:
        """Return a page of whole dead letters, oldest first, at most `room` bytes, and the cursor of the next page.

        Raises:
            NotFound: if there is no such plan.
        """
        store = self.bus.dead_letters
        selection = store.select(filter)
        plan = self.replays.frozen(plan_id) if plan_id is not None else None
        keys = await store.keys(selection) if plan is None else plan.keys()
        return await store.export(keys, selection, after=after, limit=limit, room=room, plan=plan)

    # Observing and operating

    async def trace(self, message_id: str) -> list[Span]:
        """Return the spans of a message, one per target."""
        return await self.bus.index.run(lambda db: spans(db, message_id))

    async def search_traces(self, search: TraceSearch) -> TracePage:
        """Return a page of messages with their status, newest first."""
        return await self.bus.index.run(lambda db: search_traces(db, search))

    async def conversation(self, trace_id: str) -> list[Span]:
        """Return the spans of all messages of a trace."""
        return await self.bus.index.run(lambda db: conversation(db, trace_id))

    def metrics(self) -> MetricsSnapshot:
        """Return the counters since the start."""
        return self.bus.metrics.snapshot()

    def throughput(self) -> LiveThroughput:
        """Return the traffic counters, with the last minute second by second."""
        return read_throughput(self.bus.metrics)

    def on_delivery_ended(self, callback: Callable[[Delivery], None]) -> None:
        """Call `callback` with every delivery that was handled or dead-lettered; it must neither block nor raise."""
        self.bus.recorder.on_ended = callback

    def breakers(self) -> list[TargetBreaker]:
        """Return every breaker."""
        return read_breakers(self.bus)

    def reset_breaker(self, target: str, why: str = "reset by the operator") -> None:
        """Close a target's breaker (subject or hash)."""
        self.bus.breakers.reset(self._target(target), why)

    def force_breaker(self, target: str, state: CircuitState, why: str) -> None:
        """Hold a target's breaker open, or close it, until it is reset."""
        self.bus.breakers.force(self._target(target), state, why)

    def mailboxes(self) -> list[MailboxState]:
        """Return the state of every mailbox, by subject."""
        now = self._clock.now_ms()
        rows = sorted(self.mailbox_rows().items(), key=lambda item: item[1].subject)
        return [row.state(hash, now) for hash, row in rows]

    def mailbox_rows(self) -> dict[str, MailboxRow]:
        """Return a cheap row for every mailbox, by hash."""
        bus = self.bus
        return {mailbox.hash: read_mailbox(bus, mailbox) for mailbox in bus.mailboxes}

    def journal(self) -> JournalState:
        """Return the journal's size, its last checkpoint, and how many messages are not files yet."""
        return read_journal(self.bus)

    def depth(self, subject: str) -> int:
        """Return how many messages are waiting for a subject."""
        mailbox = self.bus.mailboxes.get(subject_hash(subject))
        return mailbox.depth if mailbox is not None else 0

    def senders(self) -> list[SenderUsage]:
        """Return the rate-limit usage of each sender."""
        return self.bus.limiter.usage()

    async def rebuild_index(self) -> None:
        """Rebuild the index from the Maildir."""
        await self.bus.index.rebuild()

    async def idle(self) -> None:
        """Wait until no consumer has a message left to handle, and every message that rests is a file."""
        bus = self.bus
        await bus.dispatch.idle()
        if not bus.commits.files.is_idle:
            with suppress(OSError):  # its mailbox says why it cannot be written
                await asyncio.to_thread(bus.commits.files.flush)

    def stop_dispatch(self) -> None:
        """Hand out no further messages; those in flight are finished."""
        self.bus.dispatch.stop()

    def _refresh(self, subscription: Subscription) -> None:
        """Let the mailboxes that a subscription matches look up their consumers."""
        if self._running is not None:
            self._running.dispatch.refresh_matching(subscription.pattern)

    def _target(self, target: str) -> str:
        mailbox = self.bus.mailboxes.find(target)
        if mailbox is None:
            raise NotFound(f"no target {target}", what=target)
        return mailbox.hash

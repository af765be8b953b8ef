"""The parts of the bus, wired together, and the order in which they start and stop.

Start: lock the data directory → read the configuration → complete what the last process left
(journal, then ``cur/``) → index → event log → commits → watchers → background check of the index.
Stop, in reverse: nothing new begins, what is under way gets a moment, everything written is made
to last. A start that fails halfway undoes what it had done.

The module is long because it is that one order: every part is made, started and joined to the others here.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson

from relay_core.access import AccessControl
from relay_core.adapters import Adapters
from relay_core.bindings import Bindings
from relay_core.breaker import CircuitBreakers, CircuitState
from relay_core.clock import Clock, SystemClock, iso
from relay_core.commit import Commits
from relay_core.config import RelayConfig, load_config
from relay_core.consumers import Consumer
from relay_core.datadir import DataDir
from relay_core.deadletter_store import DeadLetterStore
from relay_core.deadletters import Code
from relay_core.dedupe import Dedupe, Outcome
from relay_core.deliver import Deliver
from relay_core.delivery import Delivery, TargetKind
from relay_core.dispatch import Dispatch
from relay_core.drops import DropWatch
from relay_core.errors import AccessDenied, ConfigError
from relay_core.event_log import EventLog
from relay_core.events import EventKind
from relay_core.fanout import Fanout
from relay_core.handling import Handling
from relay_core.ids import UlidFactory, is_ulid
from relay_core.index import Index
from relay_core.journal import Journal, done, segments
from relay_core.limited_log import LimitedLog
from relay_core.lookups import is_sound
from relay_core.mailbox import BadFile, Mailbox
from relay_core.mailboxes import Mailboxes
from relay_core.maildir import CUR
from relay_core.match import Match
from relay_core.metrics import Metrics
from relay_core.parents import Parents
from relay_core.parking import Parking
from relay_core.past import Past, waiting_since
from relay_core.pipeline import (
    Access,
    BudgetGate,
    Graves,
    RateLimit,
    Settle,
    Stage,
    Stamp,
    Validate,
    begin_pipeline,
)
from relay_core.publication import Publication
from relay_core.pull import Pull
from relay_core.ratelimit import RateLimiter
from relay_core.recorder import Recorder
from relay_core.recovery import Recovered, recover
from relay_core.reindex import Reindexer
from relay_core.replies import Replies
from relay_core.restoring import Restoring
from relay_core.results import PublishResult
from relay_core.signals import Signal, SignalHub
from relay_core.subjects import is_of_bus, subject_hash
from relay_core.subscriptions import Subscriptions
from relay_core.tasks import Tasks
from relay_core.watch import FileWatch

logger = logging.getLogger(__name__)

CLOSE_GRACE_SECS = 10.0
_ENVELOPE_ROOM = 64 * 1024


class Bus:
    """Every part of a running bus."""

    def __init__(self, data_dir: DataDir, config: RelayConfig, clock: Clock) -> None:
        self.data_dir = data_dir
        self.base_config = config
        """What the constructor was given; config.json goes on top."""
        self.config = config
        self.config_problem: str | None = None
        """Why the config.json that is there is not in force."""
        self.clock = clock
        self.tasks = Tasks()
        """Work that gets a moment to end when the bus closes: messages under way."""
        self.background = Tasks()
        """Work that can be broken off at any time."""
        self.log = LimitedLog(logger, clock)
        self.new_id = UlidFactory(clock)
        self.signals = SignalHub()
        self.subscriptions = Subscriptions()
        self.metrics = Metrics(clock)
        self.access = AccessControl(data_dir.access_rules, data_dir.read)
        self.bindings = Bindings(data_dir.conversations)
        self.limiter = RateLimiter(config.reliability.rate_limit, clock)
        self.breakers = CircuitBreakers(config.reliability.circuit_breaker, clock, self._breaker_moved)
        self.on_reload: Callable[[], None] | None = None
        """Told when the operator's files have been read again."""
        self._consumers: dict[str, tuple[int, Sequence[Consumer]]] = {}
        self.opening = asyncio.Lock()
        """Held while a mailbox is made or removed."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start every part, and stop them in reverse."""
        async with AsyncExitStack() as stack:
            self.data_dir.acquire()
            stack.callback(self.data_dir.release)
            self.config = load_config(self.data_dir.config, self.base_config, self.data_dir.read)
            self._assemble()
            stack.push_async_callback(asyncio.to_thread, self.index.close)
            recovered, past, strays = await asyncio.to_thread(self._load)
            await stack.enter_async_context(self.events)
            self.recorder.event(EventKind.BUS, status="started")
            stack.callback(self.recorder.event, EventKind.BUS, status="stopped")
            self.journal.open(after=past.read_to)
            self.commits.open()
            stack.push_async_callback(self.commits.close)
            await self._remember(recovered, past)
            self._apply_config()
            for mailbox, bad in strays:
                for one in bad:
                    await self.parking.set_aside(mailbox, one)
            await self._park_interrupted()
            await stack.enter_async_context(self.drops)
            for mailbox in self.mailboxes:
                self.drops.add(mailbox.hash, mailbox.maildir.path / "new")
            await stack.enter_async_context(self.operator_files)
            stack.callback(self.subscriptions.close)
            stack.push_async_callback(self.parking.close)
            stack.push_async_callback(self.tasks.close, grace=CLOSE_GRACE_SECS)
            stack.push_async_callback(self.background.close)
            stack.callback(self.dispatch.stop)
            await stack.enter_async_context(self.adapters)
            self.index.dirty = True  # what a kill has kept from it is found by the check
            self.background.start(self._check_index(), name="check index")
            if recovered.unfinished:
                self.background.start(self._restore(), name="restore")
            yield

    def _assemble(self) -> None:
        config, clock = self.config, self.clock
        read_limit = config.limits.max_payload_bytes + _ENVELOPE_ROOM
        self.durability = config.durability
        """What is promised until the next start, whatever config.json says meanwhile."""
        sync = config.durability == "fsync"
        self.mailboxes = Mailboxes(self.data_dir.mailboxes, read_limit=read_limit, sync=sync)
        self.replies = Replies(lambda subject: self.mailboxes.endpoint(subject) is not None)
        self.reindexer = Reindexer(self.data_dir.mailboxes, limit=read_limit + _ENVELOPE_ROOM, past=self._whole_past)
        self.index = Index(self.data_dir.index, self.reindexer.rebuild)
        self.events = EventLog(self.data_dir.events, config.events, clock)
        self.recorder = Recorder(self.index, self.metrics, self.events, clock)
        self.journal = Journal(self.data_dir.journal, config.durability)
        self.commits = Commits(self.journal, asyncio.get_running_loop(), clock)
        self.commits.before_drop = lambda: self.index.caught_up(self.journal.sequence - 1)
        self.restoring = Restoring(self.commits, self.mailboxes, clock, self._restored)
        self.parking = Parking(self.commits, self.recorder, clock, self.new_id, self.background)
        self.handling = Handling(
            self.consumers, self.breakers, self.commits, self.parking, self.recorder, clock, self.replies
        )
        self.dispatch = Dispatch(
            self.consumers,
            self.subscriptions.pools,
            self.breakers,
            self.handling,
            self.parking,
            self.recorder,
            clock,
            self.tasks,
        )
        self.adapters = Adapters(self)
        self.dedupe = Dedupe(config.limits.dedupe_entries)
        self.dead_letters = DeadLetterStore(self.mailboxes, self.commits, self.index, self.recorder, clock)
        self.pull = Pull(self)
        self.drops = DropWatch(self._dropped, self.rescan)
        names = (self.data_dir.config.name, self.data_dir.access_rules.name)
        self.operator_files = FileWatch(self.data_dir.path, names, self.reload)
        self.stages = self._stages()

    def _stages(self) -> list[Stage]:
        graves = Graves(self.open_mailbox, self.parking)
        return [
            Validate(self),
            Stamp(self, self.clock, self.new_id, Parents(self.mailboxes, self.index, self._recall)),
            Access(self.access, self.bindings, self.adapters, self.replies, self.recorder),
            RateLimit(self.limiter, self.recorder),
            BudgetGate(graves, self.recorder),
            Match(
                self,
                self.mailboxes,
                self.access,
                self.bindings,
                self.adapters,
                self.subscriptions.listeners,
                self.open_mailbox,
                self.recorder,
            ),
            Deliver(
                self,
                self.breakers,
                self.signals,
                self.commits,
                self.dispatch,
                self.recorder,
                self.clock,
                lambda publication: Fanout(publication, self.parking, self.tasks, self.clock),
                self.dedupe,
                self.replies,
            ),
            Settle(graves, self.parking, self.recorder),
        ]

    def signal(self, subject: str, signal: Signal) -> None:
        """Pass a signal on.

        Raises:
            AccessDenied: if the subject is a person to whom the one it is about is not bound. An adapter may show the
                person what it says: it must not be a way around the bindings.
        """
        sender = signal.endpoint_subject
        if self.adapters.is_person(subject) and not is_of_bus(sender):
            why = self.bindings.find(sender, subject)
            if isinstance(why, str):
                raise AccessDenied(why, sender=sender, subject=subject, code="not_bound")
        self.signals.emit(subject, signal)

    def begin(self, publication: Publication) -> PublishResult | Coroutine[Any, Any, PublishResult]:
        """Take a publication through the pipeline, once per dedupe id.

        Returns the result if nothing had to be waited for, else the rest of the way, which must be awaited.
        """
        if publication.dedupe is None:
            return begin_pipeline(self.stages, publication)
        return self.dedupe.once(publication.dedupe, partial(self._begin_once, publication))

    async def publish(self, publication: Publication) -> PublishResult:
        """Take a publication through the pipeline, once per dedupe id."""
        outcome = self.begin(publication)
        return outcome if isinstance(outcome, PublishResult) else await outcome

    def _begin_once(self, publication: Publication) -> Outcome | Coroutine[Any, Any, Outcome]:
        outcome = begin_pipeline(self.stages, publication)
        if isinstance(outcome, PublishResult):
            return outcome, publication.lasting
        return self._go_on_once(outcome, publication)

    @staticmethod
    async def _go_on_once(rest: Coroutine[Any, Any, PublishResult], publication: Publication) -> Outcome:
        return await rest, publication.lasting

    def _load(self) -> tuple[Recovered, Past, list[tuple[Mailbox, list[BadFile]]]]:
        """Do what a start must read from disk, off the loop."""
        now = self.clock.now_ms()
        self.limiter.update_config(self.config.reliability.rate_limit)
        window_began = now - self.config.reliability.rate_limit.window_secs * 1000
        self.index.open()
        used = {one: (sender, at) for one, sender, at in self.index.warm(window_began)}
        for key, result in self.index.recent_outcomes(self.config.limits.dedupe_entries):
            with suppress(ValueError):  # damaged, or of another Relay: the index never fails a start
                self.dedupe.remember(key, PublishResult.model_validate(orjson.loads(result)))
        known = self.index.read_to()  # asked last: an index found to be damaged has just been replaced
        past = Past(now - self._remembered_ms())
        past.read_to = known
        past.read([(sequence, path) for sequence, path in self.journal.kept.segments() if sequence > known])
        recovered = recover(self.data_dir.journal, self.mailboxes.maildir, past, self.journal.make_room)
        strays = self.mailboxes.load()
        if not known:
            used |= waiting_since(self.mailboxes, window_began)
        used |= {row.id: (row.sender, row.created_ms) for row in past.publishes.values()}
        self.limiter.warm(used.values())
        self.access.load()
        self.bindings.load()
        return recovered, past, strays

    async def _remember(self, recovered: Recovered, past: Past) -> None:
        """Take over what the journal knew, and set its old segments aside."""
        if recovered.cut_short:
            self.journal.amend([done(message_id) for message_id in recovered.cut_short])
        for key, result in past.outcomes.items():
            if key not in self.dedupe:  # the index has the exact outcome, the journal what was planned
                self.dedupe.remember(key, PublishResult.model_validate(result))
        for row in past.rows():
            self.index.note(row)
        await self.index.flush()
        self.commits.inherits = True
        if recovered.unfinished:
            self.restoring.begin(recovered.unfinished)
        else:
            try:
                await asyncio.to_thread(self.commits.checkpoint)
            except OSError as error:
                logger.error("journal: the old segments are kept: %s", error)
        known = [step.message for step in recovered.unfinished if is_ulid(step.message)]
        newest = max([*known, self.mailboxes.newest() or ""])
        if newest:
            self.new_id.seed(newest)

    def _remembered_ms(self) -> int:
        """Return for how long anything may be asked of an earlier publish."""
        config = self.config
        return max(config.retention.trace_ms, config.budget.ttl_ms, config.reliability.rate_limit.window_secs * 1000)

    def _whole_past(self, only: str | None = None) -> Past:
        """Return everything that the journal still tells of earlier publishes, or of one message. Blocks."""
        past = Past(self.clock.now_ms() - self._remembered_ms(), only)
        past.read_to = max(self.journal.sequence - 1, 0)  # the present one has rows that are not written yet
        past.read([*self.journal.kept.segments(), *segments(self.data_dir.journal)])
        return past

    def _recall(self, message_id: str) -> list[Delivery]:
        """Return what the journal still tells of one message's deliveries. Blocks."""
        return list(self._whole_past(message_id).deliveries.values())

    def _restored(self, mailbox: Mailbox, is_new: bool) -> None:
        """Serve a mailbox that got a message back."""
        if is_new:
            self.drops.add(mailbox.hash, mailbox.maildir.path / "new")
        self.listen(mailbox)

    async def _restore(self) -> None:
        """Restore the messages that are in the journal alone, and give them their rows."""
        await self.restoring.run()
        await self._check_index()

    async def _park_interrupted(self) -> None:
        """Park what the last process had claimed: its handler may have run."""
        process_started = SystemClock().now_ms() / 1000  # file times are the machine's
        for mailbox in self.mailboxes:
            mailbox.maildir.sweep(older_than=process_started)
            for message_id in mailbox.maildir.ids(CUR):
                if self.restoring.has(mailbox.hash, message_id):
                    continue  # its dead letter waits for room
                if len(mailbox.maildir.whereabouts(message_id)) > 1:
                    # It was being parked, and the record stands, or being put back, and was not begun.
                    mailbox.maildir.remove(CUR, message_id)
                    continue
                found = mailbox.read(CUR, message_id)
                if isinstance(found, BadFile):
                    await self.parking.set_aside(mailbox, found)
                else:
                    self.replies.handed(mailbox.subject, found.envelope)
                    reason = "the process died while this message was being handled"
                    await self.parking.park_surely(mailbox, found, code=Code.INTERRUPTED, reason=reason)

    async def _check_index(self) -> None:
        """Look for damage and for rows that trail behind, without holding up the start."""
        try:
            if not await self.index.run(is_sound):
                await self.index.rebuild()
            else:
                await self.index.run(self.reindexer.reconcile)
                self.index.note_repaired()
        except (sqlite3.Error, OSError) as error:
            logger.warning("index: %s", error)

    def consumers(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        """Return who handles a mailbox's messages, and the timeout of each in seconds."""
        if mailbox.about.kind == TargetKind.ADAPTER:
            return self.adapters.consumers(mailbox)
        timeout = self.config.dispatch.handler_timeout_ms / 1000
        version = self.subscriptions.version
        cached = self._consumers.get(mailbox.hash)
        if cached is not None and cached[0] == version:
            return cached[1], timeout
        found = self.subscriptions.match(mailbox.subject)
        self._consumers[mailbox.hash] = (version, found)
        return found, timeout

    def listen(self, mailbox: Mailbox) -> None:
        """Look again whether somebody handles a mailbox's messages."""
        self._consumers.pop(mailbox.hash, None)
        mailbox.is_handled = bool(self.consumers(mailbox)[0])
        if mailbox.is_handled:
            self.dispatch.kick(mailbox)

    async def open_mailbox(self, subject: str, kind: str, *, registered: bool = False) -> Mailbox:
        """Return a subject's mailbox, made if there is none yet."""
        if (known := self._find_open(subject, kind, registered)) is not None:
            return known
        async with self.opening:
            if (known := self._find_open(subject, kind, registered)) is not None:
                return known  # somebody else has made it, and whoever waited longest goes on first
            now = iso(self.clock.now_ms())
            if self.durability == "fsync":
                prepared = await asyncio.to_thread(self.mailboxes.prepare, subject, kind, now, registered=registered)
                mailbox = self.mailboxes.adopt(*prepared)
            else:
                mailbox = self.mailboxes.open(subject, kind, now, registered=registered)
            self.drops.add(mailbox.hash, mailbox.maildir.path / "new")
            self.listen(mailbox)
        return mailbox

    def forget(self, mailbox: Mailbox) -> None:
        """Let go of what is kept for a mailbox that was removed."""
        self._consumers.pop(mailbox.hash, None)
        self.drops.remove(mailbox.hash)
        self.breakers.forget(mailbox.hash)

    def _find_open(self, subject: str, kind: str, registered: bool) -> Mailbox | None:
        """Return a subject's mailbox if nothing about it has to be written."""
        known = self.mailboxes.get(subject_hash(subject))
        if known is None or (registered and not known.about.registered):
            return None
        if known.about.kind == TargetKind.NONE and kind == TargetKind.SUBSCRIPTION:
            known.about = known.about.model_copy(update={"kind": kind})  # it held dead letters only
        return None if known.about.kind == TargetKind.NONE and kind == TargetKind.ADAPTER else known

    def rescan(self) -> None:
        """Look for files in every mailbox that nobody told us of."""
        self.background.start(self._rescan(), name="rescan")

    async def _rescan(self) -> None:
        for mailbox in self.mailboxes:
            await self._discovered(mailbox, await asyncio.to_thread(mailbox.strangers))

    def _dropped(self, hash: str, name: str) -> None:
        mailbox = self.mailboxes.get(hash)
        if mailbox is not None and not mailbox.has(name.removesuffix(".json")):
            self.tasks.start(self._discovered(mailbox, [name]), name="drop")

    async def _discovered(self, mailbox: Mailbox, names: list[str]) -> None:
        if names and mailbox.reserved:
            await self.commits.settled()  # one of them may be our own, on disk already and about to be counted
        for bad in mailbox.discover(names):
            await self.parking.set_aside(mailbox, bad)
        if mailbox.is_handled:
            self.dispatch.kick(mailbox)

    def reload(self, name: str | None = None) -> None:
        """Read the operator's files again; a bad one is reported, never half applied."""
        if name in (None, self.data_dir.access_rules.name):
            self.access.load()
            self._say_access()
        if name in (None, self.data_dir.config.name):
            try:
                self.config = load_config(self.data_dir.config, self.base_config, self.data_dir.read)
            except ConfigError as error:
                self.config_problem = error.message
                self.log.error(
                    ("config.json", error.message),
                    "config.json is not used: %s; the last good one stays in force",
                    error.message,
                )
            else:
                self.config_problem = None
                self._apply_config()
                self.log.info("config.json", "config.json was read again and is in force")
        if self.on_reload is not None:
            self.on_reload()

    def _say_access(self) -> None:
        broken = self.access.broken
        if broken is not None:
            self.log.error(("access-rules.json", broken), "access-rules.json: %s; everything is denied", broken)
        else:
            count = len(self.access.rules())
            self.log.info("access-rules.json", "access-rules.json was read again: %d rules are in force", count)

    def _apply_config(self) -> None:
        self.limiter.update_config(self.config.reliability.rate_limit)
        self.breakers.update_config(self.config.reliability.circuit_breaker)
        self.dispatch.look_again(self.mailboxes)
        self.recorder.limits_changed(self.mailboxes, self.config.reliability.backpressure)
        self.events.update_config(self.config.events)
        self.journal.kept.max_bytes = self.config.retention.journal_bytes
        self.journal.kept.max_secs = self._remembered_ms() / 1000

    def _breaker_moved(self, key: str, old: CircuitState, new: CircuitState, why: str) -> None:
        mailbox = self.mailboxes.get(key)
        subject = mailbox.subject if mailbox is not None else None
        self.recorder.event(EventKind.BREAKER, target=key, subject=subject, status=new, detail=f"{old} → {new}: {why}")
        level = logging.WARNING if new is CircuitState.OPEN else logging.INFO
        self.log.log(level, ("breaker", key, new), "breaker of %s: %s → %s: %s", subject or key, old, new, why)
        if mailbox is not None and new is not CircuitState.HALF_OPEN:
            self.dispatch.kick(mailbox)

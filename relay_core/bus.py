"""The parts of the bus, wired together, and the order in which they start and stop.

Start: lock the data directory → read the configuration → recover from the last process (journal, then ``cur/``) → index
→ event log → commits → watchers → adapters → background check of the index. Stop, in reverse: no message begins,
messages in flight get a grace period, everything written is made durable. A start that fails halfway is undone.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import orjson

from relay_core.adapters.registry import Adapters
from relay_core.adapters.routes import AdapterRoutes
from relay_core.clock import Clock, SystemClock
from relay_core.config import RelayConfig
from relay_core.deadletters.replay import Replays
from relay_core.deadletters.replay_planner import ReplayPlanner
from relay_core.deadletters.store import DeadLetterStore
from relay_core.dispatch.consumers import Consumers
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.dispatch.drop_intake import DropIntake
from relay_core.dispatch.handling import Handling
from relay_core.dispatch.inbox import Inbox
from relay_core.dispatch.mailbox_lifecycle import MailboxLifecycle
from relay_core.dispatch.subscriptions import Subscriptions
from relay_core.errors import ConfigError
from relay_core.journal.commit import Commits
from relay_core.journal.deferred_recovery import DeferredRecovery
from relay_core.journal.journal import Journal
from relay_core.journal.recovery import JournaledMove, Recovered, recover
from relay_core.journal.segment import segments
from relay_core.journal.transaction import Move
from relay_core.limited_log import LimitedLog
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Delivery
from relay_core.messages.ids import UlidFactory, is_ulid
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import SignalHub
from relay_core.pipeline.deliver import Deliver
from relay_core.pipeline.failure_notices import FailureNotices
from relay_core.pipeline.fanout import Fanout
from relay_core.pipeline.match import Match
from relay_core.pipeline.parents import Parents
from relay_core.pipeline.problem_reports import ProblemReports
from relay_core.pipeline.publisher import Pipeline, Pipelines, Publisher
from relay_core.pipeline.settle import Settle, SubjectDeadLetters
from relay_core.pipeline.signal_sender import SignalSender
from relay_core.pipeline.stages import Access, BudgetGate, RateLimit, Stamp, Validate
from relay_core.records.event_log import EventLog
from relay_core.records.events import EventKind
from relay_core.records.index import Index
from relay_core.records.journal_history import JournalHistory, waiting_since
from relay_core.records.metrics import Metrics
from relay_core.records.queries import is_sound
from relay_core.records.recorder import Recorder
from relay_core.records.reindex import Reindexer
from relay_core.rules.bindings import Bindings
from relay_core.rules.breaker import CircuitBreakers, CircuitState
from relay_core.rules.dedupe import Dedupe
from relay_core.rules.rate_limit import RateLimiter
from relay_core.rules.replies import ReplyRules
from relay_core.storage.access_file import AccessControl
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.conversations_file import ConversationsFile
from relay_core.storage.data_dir import DataDir
from relay_core.storage.dropped_files import DropWatch
from relay_core.storage.file_watch import FileWatch
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.maildir import CUR, FAILED
from relay_core.storage.stored_message import BadFile
from relay_core.tasks import Tasks

logger = logging.getLogger(__name__)

CLOSE_GRACE_SECS = 10.0
_ENVELOPE_ROOM = 64 * 1024


class Bus:
    """Every part of a running bus."""

    def __init__(self, data_dir: DataDir, config: RelayConfig, clock: Clock) -> None:
        self.data_dir = data_dir
        self.settings = LiveConfig(data_dir, config)
        self.clock = clock
        self.tasks = Tasks()
        """Messages in flight: they get a grace period when the bus closes."""
        self.background = Tasks()
        """Work that can be cancelled at any time."""
        self.log = LimitedLog(logger, clock)
        self.new_id = UlidFactory(clock)
        self.signals = SignalHub()
        self.subscriptions = Subscriptions()
        self.metrics = Metrics(clock)
        self.access = AccessControl(data_dir.access_rules, data_dir.read)
        self.bindings = Bindings()
        self.conversations = ConversationsFile(data_dir.conversations)
        self.limiter = RateLimiter(config.reliability.rate_limit, clock)
        self.breakers = CircuitBreakers(config.reliability.circuit_breaker, clock, self._breaker_moved)
        self.routes = AdapterRoutes()
        self.signal_sender = SignalSender(self.signals, self.routes, self.bindings)
        self.on_reload: Callable[[], None] | None = None
        """Called when the operator's files have been reloaded."""

    @property
    def config(self) -> RelayConfig:
        """Return the configuration in force."""
        return self.settings.config

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start every part, and stop them in reverse."""
        async with AsyncExitStack() as stack:
            self.data_dir.acquire()
            stack.callback(self.data_dir.release)
            self.settings.load()
            self._assemble()
            stack.push_async_callback(asyncio.to_thread, self.index.close)
            recovered, history, bad_files = await asyncio.to_thread(self._load)
            await stack.enter_async_context(self.events)
            self.recorder.event(EventKind.BUS, status="started")
            stack.callback(self.recorder.event, EventKind.BUS, status="stopped")
            self.journal.open(after=history.read_to)
            self.commits.open()
            stack.push_async_callback(self.commits.close)
            await self._apply_history(recovered, history)
            self._apply_config()
            self.problems.report(self.data_dir.access_rules.name, self.access.broken)
            for mailbox, files in bad_files:
                for bad in files:
                    await self.dead_letter_writer.quarantine(mailbox, bad)
            await self._dead_letter_interrupted()
            await stack.enter_async_context(self.drops)
            for mailbox in self.mailboxes:
                self.lifecycle.watch(mailbox)
            await stack.enter_async_context(self.operator_files)
            stack.callback(self.subscriptions.close)
            stack.push_async_callback(self.dead_letter_writer.retry_all)
            stack.push_async_callback(self.tasks.close, grace=CLOSE_GRACE_SECS)
            stack.push_async_callback(self.background.close)
            stack.callback(self.dispatch.stop)
            await stack.enter_async_context(self.adapters)
            self.notices.flush()
            self.index.dirty = True  # the check finds rows that a kill has prevented
            self.background.start(self._check_index(), name="check index")
            if recovered.unfinished or recovered.held:
                self.background.start(self._restore(), name="restore")
            yield

    def _assemble(self) -> None:
        """Create the parts that depend on the configuration, from the disk upwards."""
        config, clock = self.config, self.clock
        read_limit = config.limits.max_payload_bytes + _ENVELOPE_ROOM
        self.durability = config.durability
        """Fixed until the next start, even if config.json changes meanwhile."""
        sync = config.durability == "fsync"
        self.mailboxes = Mailboxes(self.data_dir.mailboxes, read_limit=read_limit, sync=sync)
        self.replies = ReplyRules(lambda subject: self.mailboxes.endpoint(subject) is not None)
        self.dedupe = Dedupe(config.limits.dedupe_entries)

        self.reindexer = Reindexer(
            self.data_dir.mailboxes,
            maildir=self.mailboxes.maildir,
            limit=read_limit + _ENVELOPE_ROOM,
            history=self._read_history,
            flush=lambda: self.commits.files.flush(),
        )
        self.index = Index(self.data_dir.index, self.reindexer.rebuild)
        self.events = EventLog(self.data_dir.events, config.events, clock)
        self.recorder = Recorder(self.index, self.metrics, self.events, clock)
        self.problems = ProblemReports(self.signals, self.recorder, clock)

        self.journal = Journal(self.data_dir.journal, config.durability)
        self.commits = Commits(self.journal, asyncio.get_running_loop(), clock)
        self.commits.checkpoints.before = self._before_checkpoint
        self.deferred_recovery = DeferredRecovery(self.commits, self.mailboxes, clock, self._restored)

        self.dead_letter_writer = DeadLetterWriter(self.commits, self.recorder, clock, self.new_id, self.background)
        self.consumers = Consumers(self.subscriptions, self.routes.consumers, self.settings)
        self.handling = Handling(
            self.consumers, self.breakers, self.commits, self.dead_letter_writer, self.recorder, clock, self.replies
        )
        self.dispatch = Dispatch(
            self.mailboxes,
            self.consumers,
            self.subscriptions.pools,
            self.breakers,
            self.handling,
            self.commits,
            self.dead_letter_writer,
            self.recorder,
            clock,
            self.tasks,
        )
        self.commits.on_settled = self.dispatch.take_turn
        self.intake = DropIntake(
            self.mailboxes, self.commits, self.dead_letter_writer, self.dispatch, self.tasks, self.background
        )
        self.drops = DropWatch(self.intake.dropped, self.intake.rescan)
        self.lifecycle = MailboxLifecycle(self.mailboxes, self.drops, self.dispatch, self.breakers, clock, sync=sync)
        self.dead_letters = DeadLetterStore(self.mailboxes, self.commits, self.index, self.recorder, clock)
        self.inbox = Inbox(
            self.mailboxes,
            self.commits,
            self.dead_letter_writer,
            self.handling,
            self.breakers,
            self.replies,
            self.recorder,
            clock,
            self.dead_letters.complete_late,
        )

        self.pipelines = self._pipelines()
        self.publisher = Publisher(self.pipelines.publish, self.dedupe)
        self.notices = FailureNotices(
            self.pipelines.notice,
            self.dead_letter_writer,
            self.mailboxes,
            self.subscriptions,
            self.routes,
            self.bindings,
            self.settings,
            clock,
            self.new_id,
            self.tasks,
        )
        self.replays = self._replays()
        self.adapters = Adapters(
            self.routes,
            self.publisher,
            self.signals,
            self.signal_sender,
            self.mailboxes,
            self.lifecycle,
            self.dispatch,
            self.recorder,
            clock,
            self.tasks,
            self.data_dir.path / "adapters",
            self.notices.flush,
        )
        names = (self.data_dir.config.name, self.data_dir.access_rules.name)
        self.operator_files = FileWatch(self.data_dir.path, names, self.reload)

    def _before_checkpoint(self) -> None:
        """Give every message of the journal its file and its row. Blocks.

        Raises:
            OSError: if the journal still has the only copy of something.
        """
        last = self.journal.sequence - 1
        self.commits.files.flush()
        self.index.caught_up(last)

    def _pipelines(self) -> Pipelines:
        subject_dead_letters = SubjectDeadLetters(self.lifecycle.open, self.dead_letter_writer)
        validate = Validate(self.settings)
        stamp = Stamp(
            self.settings, self.clock, self.new_id, Parents(self.mailboxes, self.index, self._journaled_deliveries)
        )
        access = Access(self.access, self.bindings, self.routes, self.recorder, self.replies)
        access_of_known = Access(self.access, self.bindings, self.routes, self.recorder, None)
        rate_limit = RateLimit(self.limiter, self.recorder)
        budget_gate = BudgetGate(subject_dead_letters, self.recorder)
        match = Match(
            self.settings,
            self.mailboxes,
            self.access,
            self.bindings,
            self.conversations,
            self.routes,
            self.subscriptions.listeners,
            self.lifecycle.open,
            self.recorder,
        )
        deliver = Deliver(
            self.settings,
            self.breakers,
            self.signals,
            self.commits,
            self.dispatch,
            self.recorder,
            self.clock,
            lambda publication: Fanout(publication, self.dead_letter_writer, self.tasks, self.clock),
            self.replies,
        )
        settle = Settle(subject_dead_letters, self.recorder)
        return Pipelines(
            publish=Pipeline([validate, stamp, access, rate_limit, budget_gate, match, deliver, settle], self.tasks),
            notice=Pipeline([access_of_known, match, deliver, settle], self.tasks),
            replay=Pipeline([access_of_known, budget_gate, match, deliver, settle], self.tasks),
        )

    def _replays(self) -> Replays:
        planner = ReplayPlanner(
            self.dead_letters,
            self.mailboxes,
            self.lifecycle,
            self.subscriptions,
            self.routes,
            self.access,
            self.bindings,
            self.breakers,
            self.index,
            self.settings,
            self.clock,
            self.new_id,
        )
        return Replays(
            planner,
            self.pipelines.replay,
            self.dead_letters,
            self.commits,
            self.dispatch,
            self.handling,
            self.recorder,
            self.index,
            self.settings,
            self.clock,
            self.new_id,
            self.background,
        )

    def _load(self) -> tuple[Recovered, JournalHistory, list[tuple[Mailbox, list[BadFile]]]]:
        """Recover, and load the state on disk. Blocks."""
        now = self.clock.now_ms()
        self.limiter.update_config(self.config.reliability.rate_limit)
        window_began = now - self.config.reliability.rate_limit.window_secs * 1000
        self.index.open()
        used = {id: (sender, at) for id, sender, at in self.index.warm(window_began)}
        for key, result in self.index.recent_outcomes(self.config.limits.dedupe_entries):
            with suppress(ValueError):  # damaged, or of another version: the index never fails a start
                self.dedupe.remember(key, PublishResult.model_validate(orjson.loads(result)))
        indexed = self.index.read_to()  # last: an index found to be damaged has just been replaced
        history = JournalHistory(now - self.settings.remembered_ms)
        history.read_to = indexed
        history.read([(sequence, path) for sequence, path in self.journal.closed.segments() if sequence > indexed])
        recovered = recover(
            self.data_dir.journal,
            self.mailboxes.maildir,
            history.note,
            self.journal.make_room,
            sync=self.durability == "fsync",
        )
        bad_files = self.mailboxes.load()
        unfinished = [move for move in recovered.unfinished if not self._hold(move)]
        recovered.held = len(recovered.unfinished) - len(unfinished)
        recovered.unfinished = unfinished
        if not indexed:
            used |= waiting_since(self.mailboxes, window_began)
        used |= {row.id: (row.sender, row.created_ms) for row in history.publishes.values()}
        self.limiter.warm(used.values())
        self.access.load()
        self.bindings.begun = self.conversations.load()
        return recovered, history, bad_files

    def _hold(self, move: JournaledMove) -> bool:
        """Hold a message in memory for whose file the disk has no space; return False if it is to be a dead letter."""
        mailbox = self.mailboxes.get(move.mailbox)
        if mailbox is None or move.op not in ("new", "again"):
            return False
        if move.op == "again" and mailbox.maildir.remove(FAILED, move.message):
            mailbox.dead -= 1
        data = orjson.dumps(move.data)
        self.commits.files.hold(Move("new", mailbox.hash, mailbox.maildir, move.message, data))
        if move.is_begun:
            mailbox.maildir.claim(move.message)  # its handler may have run: it is dead-lettered as interrupted
        else:
            mailbox.restored(move.message)
        mailbox.newest = max(mailbox.newest, move.message)
        return True

    async def _apply_history(self, recovered: Recovered, history: JournalHistory) -> None:
        """Load the outcomes and rows of the journal, and checkpoint its old segments."""
        for key, result in history.outcomes.items():
            if key not in self.dedupe:  # the index has the exact outcome, the journal the planned one
                self.dedupe.remember(key, PublishResult.model_validate(result))
        for row in history.rows():
            self.index.note(row)
        await self.index.flush()
        if recovered.unfinished or recovered.held:
            self.deferred_recovery.begin(recovered.unfinished, recovered.held)
        else:
            try:
                await asyncio.to_thread(self.commits.checkpoints.run)
            except OSError as error:
                logger.error("journal: the old segments are kept: %s", error)
        unfinished = [move.message for move in recovered.unfinished if is_ulid(move.message)]
        newest = max([*unfinished, self.mailboxes.newest() or ""])
        if newest:
            self.new_id.seed(newest)

    def _read_history(self, only: str | None = None) -> JournalHistory:
        """Return the journal's history of earlier publishes, or of one message. Blocks."""
        history = JournalHistory(self.clock.now_ms() - self.settings.remembered_ms, only)
        history.read_to = max(self.journal.sequence - 1, 0)  # rows of the present segment may not be written yet
        history.read([*self.journal.closed.segments(), *segments(self.data_dir.journal)])
        return history

    def _journaled_deliveries(self, message_id: str) -> list[Delivery]:
        """Return the deliveries of a message that are in the journal. Blocks."""
        return list(self._read_history(message_id).deliveries.values())

    def _restored(self, mailbox: Mailbox, is_new: bool) -> None:
        """Serve a mailbox with a restored message."""
        if is_new:
            self.lifecycle.watch(mailbox)
        self.dispatch.refresh(mailbox)

    async def _restore(self) -> None:
        """Restore the messages that exist only in the journal, and their rows."""
        await self.deferred_recovery.run()
        await self._check_index()

    async def _dead_letter_interrupted(self) -> None:
        """Dead-letter the messages that the last process had claimed: their handlers may have run."""
        process_started = SystemClock().now_ms() / 1000  # file times are the machine's
        for mailbox in self.mailboxes:
            mailbox.maildir.sweep(older_than=process_started)
            for message_id in mailbox.maildir.claimed():
                if self.deferred_recovery.has(mailbox.hash, message_id):
                    continue  # its dead letter waits for space
                if len(mailbox.maildir.whereabouts(message_id)) > 1:
                    # It was being dead-lettered, and the record counts; or requeued, and had not begun.
                    mailbox.maildir.remove(CUR, message_id)
                    continue
                found = mailbox.read(CUR, message_id)
                if isinstance(found, BadFile):
                    await self.dead_letter_writer.quarantine(mailbox, found)
                else:
                    self.replies.handed(mailbox.subject, found.envelope)
                    reason = "the process died while this message was being handled"
                    await self.dead_letter_writer.dead_letter_or_retry(
                        mailbox, found, code=Code.INTERRUPTED, reason=reason
                    )

    async def _check_index(self) -> None:
        """Check the index for damage and missing rows, without delaying the start."""
        try:
            if not await self.index.run(is_sound):
                await self.index.rebuild()
            else:
                await self.index.run(self.reindexer.reconcile)
                self.index.note_repaired()
        except (sqlite3.Error, OSError) as error:
            logger.warning("index: %s", error)

    def reload(self, name: str | None = None) -> None:
        """Reload the operator's files; a bad one is reported, never half applied."""
        if name in (None, self.data_dir.access_rules.name):
            self.access.load()
            self._log_access()
            self.problems.report(self.data_dir.access_rules.name, self.access.broken)
        if name in (None, self.data_dir.config.name):
            try:
                self.settings.load()
            except ConfigError as error:
                self.log.error(
                    ("config.json", error.message),
                    "config.json is not used: %s; the last good one stays in force",
                    error.message,
                )
            else:
                self._apply_config()
                self.log.info("config.json", "config.json was read again and is in force")
            self.problems.report(self.data_dir.config.name, self.settings.problem)
        if self.on_reload is not None:
            self.on_reload()

    def _log_access(self) -> None:
        broken = self.access.broken
        if broken is not None:
            self.log.error(("access-rules.json", broken), "access-rules.json: %s; everything is denied", broken)
        else:
            count = len(self.access.rules())
            self.log.info("access-rules.json", "access-rules.json was read again: %d rules are in force", count)

    def _apply_config(self) -> None:
        self.limiter.update_config(self.config.reliability.rate_limit)
        self.breakers.update_config(self.config.reliability.circuit_breaker)
        self.dispatch.breakers_changed()
        self.recorder.limits_changed(self.mailboxes, self.config.reliability.backpressure)
        self.events.update_config(self.config.events)
        self.journal.closed.max_bytes = self.config.retention.journal_bytes
        self.journal.closed.max_secs = self.settings.remembered_ms / 1000

    def _breaker_moved(self, key: str, old: CircuitState, new: CircuitState, why: str) -> None:
        mailbox = self.mailboxes.get(key)
        subject = mailbox.subject if mailbox is not None else None
        self.recorder.event(EventKind.BREAKER, target=key, subject=subject, status=new, detail=f"{old} → {new}: {why}")
        level = logging.WARNING if new is CircuitState.OPEN else logging.INFO
        self.log.log(level, ("breaker", key, new), "breaker of %s: %s → %s: %s", subject or key, old, new, why)
        if mailbox is not None and new is not CircuitState.HALF_OPEN:
            self.dispatch.wake(mailbox)

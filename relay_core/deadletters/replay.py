"""Replay dead letters: planned, then run by the process that holds the bus, whether or not a dashboard is open.

1. A plan is a frozen selection with a verdict per message (replay_planner.py). Planning changes nothing; messages that
   fail later are not in it.
2. A run resends each message: to the target whose copy it is, or, if it never had one, to its subject. It keeps the id,
   the hops and the chain (unless a fresh budget is asked for), renews the TTL, and does not count against the sender's
   rate limit.
3. Moving a message from ``failed/`` to ``new/`` is one journaled transaction: whenever the process is killed, the
   message is in exactly one of the two. One run at a time holds a dead letter, so two plans over one message never
   double it.
4. A run waits while a breaker is open or pressure is above the warning. A canary run tries 1, then 10, then the rest,
   and stops if any of the first eleven fails.
5. A message counts as delivered once it is handled, or stored where there is no handler. A canary requires more: it
   waits until a consumer has acknowledged or failed the message (dispatch/inbox.py), and reports while no consumer has
   taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from relay_core.clock import Clock, iso, parse_iso
from relay_core.deadletters.replay_planner import ReplayPlanner, before_delivery, renewed
from relay_core.deadletters.replay_run import Answer, ReplayRun
from relay_core.deadletters.store import DeadLetterStore
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.dispatch.handling import Handling
from relay_core.errors import AccessDenied, Closed, NotFound
from relay_core.journal.commit import Commits
from relay_core.journal.transaction import Move, Transaction
from relay_core.messages.dead_letter import Code, DeadLetter, DeadLetterFilter
from relay_core.messages.delivery import Span, Status
from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.messages.payload import encode_payload
from relay_core.messages.replay_plan import REPLAYABLE, PlanItem, ReplayPlan, Verdict
from relay_core.messages.results import PublishResult, Reason
from relay_core.messages.subjects import is_pattern
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.publisher import Pipeline
from relay_core.records.events import EventKind
from relay_core.records.index import Index
from relay_core.records.queries import spans
from relay_core.records.recorder import Recorder
from relay_core.rules.budget import spend
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.maildir import CUR, FAILED, NEW
from relay_core.storage.stored_message import FileContent, StoredMessage
from relay_core.tasks import Tasks

_MAKE_PLAN = "make one with plan_replay or 'relay dlq plan'"
_KEPT = 100
_KEPT_ITEMS = 300_000
"""Of all plans together, except the newest."""


class Replays:
    """Plans and runs."""

    def __init__(
        self,
        planner: ReplayPlanner,
        pipeline: Pipeline,
        dead_letters: DeadLetterStore,
        commits: Commits,
        dispatch: Dispatch,
        handling: Handling,
        recorder: Recorder,
        index: Index,
        settings: LiveConfig,
        clock: Clock,
        new_id: Callable[[int], str],
        background: Tasks,
    ) -> None:
        self._planner = planner
        self._pipeline = pipeline
        self._dead_letters = dead_letters
        self._commits = commits
        self._dispatch = dispatch
        self._recorder = recorder
        self._index = index
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._background = background
        self._plans: dict[str, ReplayPlan] = {}
        self._runs: dict[str, ReplayRun] = {}
        self._in_replay = dead_letters.in_replay
        """Dead letters that are being moved out of ``failed/``."""
        self._answers: dict[tuple[str, str], Answer] = {}
        handling.on_settled = self._settled

    async def plan(
        self, *, ids: Iterable[str] | None = None, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> ReplayPlan:
        """Freeze a selection and predict the outcome of replaying each.

        Raises:
            NotFound: if an id was never a dead letter.
        """
        plan = await self._planner.plan(ids, filter, fresh_budget=fresh_budget)
        self._plans[plan.id] = plan
        _trim(self._plans, list(self._plans))
        while len(self._plans) > 1 and sum(len(plan.items) for plan in self._plans.values()) > _KEPT_ITEMS:
            del self._plans[next(iter(self._plans))]
        return plan

    def frozen(self, plan_id: str) -> ReplayPlan:
        """Return a plan, run or not.

        Raises:
            NotFound: if there is none.
        """
        run = self._runs.get(plan_id)
        plan = run.plan if run is not None else self._plans.get(plan_id)
        if plan is None:
            raise NotFound(f"no replay plan {plan_id}: {_MAKE_PLAN}", what=plan_id)
        return plan

    def start(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayRun:
        """Start a plan, at most `rate` messages a second; each plan runs once.

        Raises:
            NotFound: if there is no such plan, or it has been run.
            ValueError: if the rate is not above 0.
            Closed: if the bus is closed.
        """
        if rate is not None and not rate > 0:
            raise ValueError(f"a rate must be above 0 messages a second, not {rate}")
        plan = self._plans.pop(plan_id, None)
        if plan is None:
            why = "it has been run already" if plan_id in self._runs else _MAKE_PLAN
            raise NotFound(f"no replay plan {plan_id}: {why}", what=plan_id)
        run = ReplayRun(self, self._clock, plan, rate=rate, canary=canary)
        self._runs[plan_id] = run
        _trim(self._runs, [id for id, run in self._runs.items() if run.has_ended])
        if self._background.start(run.work(), name=f"replay {plan_id}") is None:
            raise Closed("the bus is closed")
        return run

    def run(self, plan_id: str) -> ReplayRun:
        """Return a run that was started.

        Raises:
            NotFound: if there is none.
        """
        if plan_id not in self._runs:
            raise NotFound(f"no replay run {plan_id}", what=plan_id)
        return self._runs[plan_id]

    def runs(self) -> list[ReplayRun]:
        """Return the newest runs, oldest first."""
        return list(self._runs.values())

    async def edit(
        self, message_id: str, payload: Any, *, endpoint: str | None = None, fresh_budget: bool = False
    ) -> PublishResult:
        """Publish an edited copy of a dead letter, which it replaces once the copy is stored.

        Raises:
            NotFound: if there is no such dead letter.
            InvalidPayload: if the new payload is invalid; nothing is changed.
            AccessDenied: if its sender may no longer publish there; nothing is changed.
        """
        data = encode_payload(payload, limit=self._settings.config.limits.max_payload_bytes)
        mailbox, letter = await asyncio.to_thread(self._dead_letters.find, message_id, endpoint)
        if letter.envelope is None:
            raise NotFound(f"{message_id} is not a message and cannot be replayed", what=message_id)
        traced = [
            span for span in await self._index.run(lambda db: spans(db, message_id)) if span.target == mailbox.hash
        ]
        with self._reserve(mailbox, message_id) as is_reserved:
            if not is_reserved:
                raise NotFound(f"no dead letter {message_id}: it was replayed or purged meanwhile", what=message_id)
            now = self._clock.now_ms()
            envelope = letter.envelope
            publication = self._publication(mailbox, letter, envelope, replay_of=message_id, trace=traced[:1])
            publication.stamp(
                self._new_id(now),
                now,
                self._clock.monotonic(),
                trace_id=traced[0].trace_id if traced else envelope.id,
                budget=self._budget(mailbox, letter, envelope, now, fresh_budget),
                data=data,
            )
            result = await self._pipeline.run(publication)
            if _was_stored(publication):
                mailbox.dead -= 1
                self._recorder.removed(self._dead_letters.delivery(mailbox, letter, Status.REPLACED))
        return result

    async def resend(self, item: PlanItem, *, fresh_budget: bool, acknowledged: bool) -> Answer | str | PlanItem:
        """Resend one dead letter.

        Returns the pending answer, or the reason to wait first, or the item with the verdict for which it is skipped.

        Raises:
            StorageError: if it cannot be stored; the dead letter stays.
        """
        try:
            mailbox, letter = await asyncio.to_thread(self._dead_letters.find, item.message_id, item.endpoint_hash)
        except NotFound:
            return _now(item, Verdict.ALREADY_REPLAYED)
        with self._reserve(mailbox, letter.message_id) as is_reserved:
            envelope = letter.envelope
            if not is_reserved:
                return _now(item, Verdict.ALREADY_REPLAYED)
            planned = self._planner.plan_item(letter, fresh_budget=fresh_budget)
            if envelope is None or planned.verdict not in REPLAYABLE:
                return planned
            blocked = self._planner.blocked(self._planner.targets(letter))
            if blocked is not None:
                return blocked
            if letter.stage == "gate":
                try:
                    answer = await self._publish_again(mailbox, letter, envelope, fresh_budget)
                except AccessDenied:  # a rule or a binding has changed since it was planned
                    return _now(item, Verdict.DENIED)
            else:
                answer = await self._store_again(mailbox, letter, envelope, fresh_budget)
        if isinstance(answer, Answer):
            self.look(answer, acknowledged=acknowledged)
        return answer

    def look(self, answer: Answer, *, acknowledged: bool = False) -> None:
        """Answer for targets that will not: without a handler, or whose message another process has removed.

        With `acknowledged`, a message waiting without a handler stays pending: a consumer may still claim it.
        """
        for mailbox in answer.awaited():
            if answer.message_id in mailbox.claimed:
                continue  # even if its file is already in failed/
            where = mailbox.maildir.whereabouts(answer.message_id)
            if CUR not in where and not (NEW in where and (mailbox.is_handled or acknowledged)):
                self._answer(answer.message_id, mailbox.hash, FAILED not in where)

    def forget(self, answer: Answer) -> None:
        """Stop waiting for an answer."""
        for mailbox in answer.awaited():
            self._answers.pop((answer.message_id, mailbox.hash), None)

    @contextmanager
    def _reserve(self, mailbox: Mailbox, message_id: str) -> Iterator[bool]:
        """Reserve a dead letter; yield False if it is gone or reserved."""
        key = (message_id, mailbox.hash)
        if key in self._in_replay or FAILED not in mailbox.maildir.whereabouts(message_id):
            yield False
            return
        self._in_replay.add(key)
        try:
            yield True
        finally:
            self._in_replay.discard(key)

    async def _store_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> Answer:
        """Store a target's own copy in its mailbox again."""
        now = self._clock.now_ms()
        budget = renewed(envelope.budget, now, self._settings.config.budget, fresh=fresh_budget)
        if fresh_budget:
            budget = spend(budget, mailbox.subject)
        envelope = envelope.model_copy(
            update={"budget": budget, "replays": letter.replays + 1, "replayed_at": iso(now)}
        )
        data = encode_envelope(envelope)
        delivery = self._dead_letters.delivery(mailbox, letter.model_copy(update={"envelope": envelope}), Status.NEW)
        delivery.replays = envelope.replays
        delivery.stored_ms = float(now)
        delivery.code = delivery.reason = None
        answer = self._expect(envelope.id, [mailbox])

        def settle(change: Transaction) -> None:
            if change.failure(0) is not None:
                mailbox.reserved -= 1
                return
            mailbox.dead -= 1
            self._recorder.replayed(delivery)
            item = StoredMessage(envelope, FileContent(data), delivery, stored_at=self._clock.monotonic())
            mailbox.arrived(envelope.id, item if mailbox.wants(len(data)) else None)
            self._dispatch.wake(mailbox)

        mailbox.reserved += 1
        change = Transaction(envelope.id, [Move("again", mailbox.hash, mailbox.maildir, envelope.id, data)], settle)
        await self._commits.commit(change)
        if (error := change.failure(0)) is not None:
            self.forget(answer)
            raise storage_error("replay to", mailbox.maildir.path, error) from error
        return answer

    async def _publish_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> Answer | str:
        """Send a message that never had a target to its subject again, under its own id."""
        await self._planner.make_targets(letter)
        publication = self._again(mailbox, letter, envelope, fresh_budget)
        answer = self._expect(envelope.id, self._planner.targets(letter))
        try:
            await self._pipeline.run(publication)
        except BaseException:
            self.forget(answer)
            raise
        if not _was_stored(publication):
            self.forget(answer)
            return self._keep(mailbox, letter, publication)
        mailbox.dead -= 1
        self._note_published(mailbox, letter, publication)
        refused = {rejection.endpoint_hash for rejection in publication.rejected or ()}
        for target in refused:
            self._answer(envelope.id, target, False)
        return answer

    def _again(self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool) -> Publication:
        """Return a dead letter's message, to be published again under its own id."""
        now, created_ms = self._clock.now_ms(), parse_iso(envelope.created_at)
        publication = self._publication(mailbox, letter, envelope, replays=letter.replays + 1, replayed_at=iso(now))
        publication.stamp(
            envelope.id,
            created_ms,
            # Times are measured from the stamp: this makes the store happen now, however old the message is.
            self._clock.monotonic() - (now - created_ms) / 1000,
            trace_id=envelope.id,
            budget=self._budget(mailbox, letter, envelope, now, fresh_budget),
            data=orjson.dumps(envelope.payload),  # it was accepted before, whatever the limit is now
        )
        return publication

    def _publication(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, *, trace: Sequence[Span] = (), **replay: Any
    ) -> Publication:
        publication = Publication(
            envelope.subject,
            envelope.payload,
            envelope.sender,
            reply_to=envelope.reply_to,
            parent_id=trace[0].parent_id if trace else None,
            origin=envelope.origin,
            replaces=Move("gone", mailbox.hash, mailbox.maildir, letter.message_id),
            **replay,
        )
        publication.is_broadcast = is_pattern(envelope.subject)
        return publication

    def _budget(self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, now: int, fresh: bool) -> Budget:
        budget = renewed(envelope.budget, now, self._settings.config.budget, fresh=fresh)
        return before_delivery(budget, mailbox.subject) if letter.stage == "target" else budget

    def _keep(self, mailbox: Mailbox, letter: DeadLetter, publication: Publication) -> str:
        """Undo in the index what a refusal noted there; return the reason to wait."""
        status = Status.NO_SUBSCRIBER if letter.code == Code.NO_MATCH else Status.FAILED
        self._index.note(self._dead_letters.delivery(mailbox, letter, status))
        reasons = {rejection.reason for rejection in publication.rejected or ()}
        return f"{publication.subject} refuses it: {', '.join(sorted(reasons)) or Reason.CIRCUIT_OPEN}"

    def _note_published(self, mailbox: Mailbox, letter: DeadLetter, publication: Publication) -> None:
        """Record a replay to the subject; if its mailbox is a target, its row is already that of the new delivery."""
        if all(target.mailbox is not mailbox for target in publication.targets):
            self._index.note(self._dead_letters.delivery(mailbox, letter, Status.REPLACED))
        self._recorder.event(
            EventKind.REPLAYED,
            time=self._clock.now_ms(),
            message_id=publication.id,
            trace_id=publication.trace_id,
            subject=publication.subject,
            sender=publication.sender,
            target=mailbox.hash,
            status=Status.NEW,
            bytes=len(publication.data),
        )

    def _expect(self, message_id: str, targets: list[Mailbox]) -> Answer:
        answer = Answer(message_id, targets)
        for mailbox in targets:
            self._answers[message_id, mailbox.hash] = answer
        return answer

    def _settled(self, item: StoredMessage, handled: bool) -> None:
        if self._answers:
            self._answer(item.delivery.message_id, item.delivery.target, handled)

    def _answer(self, message_id: str, target: str, handled: bool) -> None:
        answer = self._answers.pop((message_id, target), None)
        if answer is not None:
            answer.note(target, handled)


def _now(item: PlanItem, verdict: str) -> PlanItem:
    """Return an item with its present verdict."""
    return item.model_copy(update={"verdict": verdict, "detail": None})


def _was_stored(publication: Publication) -> bool:
    """Return True if any target got its copy, or a dead letter of it: then the replayed dead letter is gone."""
    return bool(publication.delivered or publication.failures)


def _trim(kept: dict[str, Any], spare: list[str]) -> None:
    """Drop the oldest spare entries if there are too many."""
    for name in spare[: max(len(kept) - _KEPT, 0)]:
        del kept[name]

"""Replay: planned, then run, by whoever holds the bus; it goes on when the operator's screen is gone.

1. A plan is a frozen selection with a verdict per message (replay_plan.py, replay_judge.py). Planning changes
   nothing; what fails later is not in it.
2. A run puts each message back: to the target whose copy it is, or, if it never had one, to its
   subject. It keeps the id, the hops and the chain (unless a fresh budget is asked for), renews
   the TTL, and spends nothing of the sender's rate limit.
3. Taking a message out of ``failed/`` and putting it back is one journaled change: whenever the
   process is killed, the message is in exactly one of the two. Whoever takes it out has it alone,
   so two plans over one message never double it.
4. A run waits by itself while a breaker is open or pressure is above the warning. A canary run
   tries 1, then 10, then the rest, and stops when any of the first eleven fails.
5. A message counts as delivered once it is handled, or stored where no handler is. A canary wants more: there it
   waits until a consumer has acknowledged or failed the message (pull.py), and says so while no consumer has taken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from relay_core.budget import spend
from relay_core.bus import Bus
from relay_core.clock import iso, parse_iso
from relay_core.commit import Change, Op
from relay_core.deadletters import Code, DeadLetter, DeadLetterFilter
from relay_core.delivery import Status
from relay_core.envelope import Envelope, encode_envelope
from relay_core.errors import AccessDenied, Closed, NotFound
from relay_core.events import EventKind
from relay_core.files import storage_error
from relay_core.lookups import spans
from relay_core.mailbox import Item, Mailbox
from relay_core.maildir import CUR, FAILED, NEW
from relay_core.payload import encode_payload
from relay_core.pipeline import RateLimit, Stamp, Validate, run_pipeline
from relay_core.publication import Publication
from relay_core.replay_judge import Judge, before_delivery, renewed
from relay_core.replay_plan import REPLAYABLE, PlanItem, ReplayPlan, Verdict
from relay_core.replay_run import Answer, ReplayRun
from relay_core.results import PublishResult, Reason
from relay_core.subjects import is_pattern

_PLAN_ANEW = "make one with plan_replay or 'relay dlq plan'"
_KEPT = 100
_KEPT_ITEMS = 300_000
"""Of all plans together, but for the newest."""
_PASSED_BEFORE = (Validate, Stamp, RateLimit)
"""Stages that a message has behind it when it is replayed."""


class Replays:
    """Plans and runs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._judge = Judge(bus)
        self._stages = [stage for stage in bus.stages if not isinstance(stage, _PASSED_BEFORE)]
        self._plans: dict[str, ReplayPlan] = {}
        self._runs: dict[str, ReplayRun] = {}
        self._in_hand = bus.dead_letters.in_hand
        """Dead letters that somebody is taking out of ``failed/`` right now."""
        self._answers: dict[tuple[str, str], Answer] = {}
        bus.handling.on_settled = self._settled

    async def plan(
        self, *, ids: Iterable[str] | None = None, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> ReplayPlan:
        """Freeze a selection and say what a replay would do with each.

        Raises:
            NotFound: if an id was never a dead letter.
        """
        plan = await self._judge.plan(ids, filter, fresh_budget=fresh_budget)
        self._plans[plan.id] = plan
        _trim(self._plans, list(self._plans))
        while len(self._plans) > 1 and sum(len(one.items) for one in self._plans.values()) > _KEPT_ITEMS:
            del self._plans[next(iter(self._plans))]
        return plan

    def frozen(self, plan_id: str) -> ReplayPlan:
        """Return a plan, whether it was run or not.

        Raises:
            NotFound: if there is none.
        """
        run = self._runs.get(plan_id)
        plan = run.plan if run is not None else self._plans.get(plan_id)
        if plan is None:
            raise NotFound(f"no replay plan {plan_id}: {_PLAN_ANEW}", what=plan_id)
        return plan

    def start(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayRun:
        """Begin to carry out a plan, at most `rate` messages a second; each plan runs once.

        Raises:
            NotFound: if there is no such plan, or it has been run.
            ValueError: if the rate is not above 0.
            Closed: if the bus is closed.
        """
        if rate is not None and not rate > 0:
            raise ValueError(f"a rate must be above 0 messages a second, not {rate}")
        plan = self._plans.pop(plan_id, None)
        if plan is None:
            why = "it has been run already" if plan_id in self._runs else _PLAN_ANEW
            raise NotFound(f"no replay plan {plan_id}: {why}", what=plan_id)
        run = ReplayRun(self, self._bus, plan, rate=rate, canary=canary)
        self._runs[plan_id] = run
        _trim(self._runs, [one for one, run in self._runs.items() if run.has_ended])
        if self._bus.background.start(run.work(), name=f"replay {plan_id}") is None:
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
            InvalidPayload: if the new payload breaks a rule; nothing has changed then.
            AccessDenied: if its sender may not publish there any more; nothing has changed then.
        """
        bus = self._bus
        data = encode_payload(payload, limit=bus.config.limits.max_payload_bytes)
        mailbox, letter = await asyncio.to_thread(bus.dead_letters.find, message_id, endpoint)
        if letter.envelope is None:
            raise NotFound(f"{message_id} is no message and cannot be replayed", what=message_id)
        traced = [span for span in await bus.index.run(lambda db: spans(db, message_id)) if span.target == mailbox.hash]
        with self._alone(mailbox, message_id) as is_mine:
            if not is_mine:
                raise NotFound(f"no dead letter {message_id}: it was replayed or purged meanwhile", what=message_id)
            publication = self._publication(mailbox, letter, letter.envelope, fresh_budget)
            publication.data = data
            publication.created_ms = bus.clock.now_ms()
            publication.started = bus.clock.monotonic()
            publication.id = bus.new_id(publication.created_ms)
            publication.replay_of = message_id
            publication.replays = 0
            publication.replayed_at = None
            if traced:
                publication.trace_id, publication.parent_id = traced[0].trace_id, traced[0].parent_id
            result = await run_pipeline(self._stages, publication)
            if _was_stored(publication):
                mailbox.dead -= 1
                bus.recorder.removed(bus.dead_letters.delivery(mailbox, letter, Status.REPLACED))
        return result

    async def put_back(self, item: PlanItem, *, fresh_budget: bool, acknowledged: bool) -> Answer | str | PlanItem:
        """Put one dead letter back on its way.

        Returns the answer to come, or what must be waited for first, or the item with the verdict for which it is left
        alone.

        Raises:
            StorageError: if the disk refuses; the dead letter stays.
        """
        bus = self._bus
        try:
            mailbox, letter = await asyncio.to_thread(bus.dead_letters.find, item.message_id, item.endpoint_hash)
        except NotFound:
            return _now(item, Verdict.ALREADY_REPLAYED)
        with self._alone(mailbox, letter.message_id) as is_mine:
            envelope = letter.envelope
            if not is_mine:
                return _now(item, Verdict.ALREADY_REPLAYED)
            judged = self._judge.judge(letter, fresh_budget=fresh_budget)
            if envelope is None or judged.verdict not in REPLAYABLE:
                return judged
            blocked = self._judge.blocked(self._judge.targets(letter))
            if blocked is not None:
                return blocked
            if letter.stage == "gate":
                try:
                    answer = await self._publish_again(mailbox, letter, envelope, fresh_budget)
                except AccessDenied:  # since it was judged, a rule or a binding has changed
                    return _now(item, Verdict.DENIED)
            else:
                answer = await self._store_again(mailbox, letter, envelope, fresh_budget)
        if isinstance(answer, Answer):
            self.look(answer, acknowledged=acknowledged)
        return answer

    def look(self, answer: Answer, *, acknowledged: bool = False) -> None:
        """Answer for targets that will not: without a handler, or whose message another process took.

        With `acknowledged`, a message that waits without a handler is not answered for: a consumer may yet take it.
        """
        for mailbox in answer.awaited():
            if answer.message_id in mailbox.claimed:
                continue  # also while it is on its way to failed/, and on disk there already
            where = mailbox.maildir.whereabouts(answer.message_id)
            if CUR not in where and not (NEW in where and (mailbox.is_handled or acknowledged)):
                self._answer(answer.message_id, mailbox.hash, FAILED not in where)

    def forget(self, answer: Answer) -> None:
        """Wait no longer for an answer."""
        for mailbox in answer.awaited():
            self._answers.pop((answer.message_id, mailbox.hash), None)

    @contextmanager
    def _alone(self, mailbox: Mailbox, message_id: str) -> Iterator[bool]:
        """Take a dead letter in hand; False if it is gone or somebody else has it."""
        key = (message_id, mailbox.hash)
        if key in self._in_hand or FAILED not in mailbox.maildir.whereabouts(message_id):
            yield False
            return
        self._in_hand.add(key)
        try:
            yield True
        finally:
            self._in_hand.discard(key)

    async def _store_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> Answer:
        """Put a target's own copy back into its mailbox."""
        bus = self._bus
        now = bus.clock.now_ms()
        budget = renewed(envelope.budget, now, bus.config.budget, fresh=fresh_budget)
        if fresh_budget:
            budget = spend(budget, mailbox.subject)
        envelope = envelope.model_copy(
            update={"budget": budget, "replays": letter.replays + 1, "replayed_at": iso(now)}
        )
        data = encode_envelope(envelope)
        delivery = bus.dead_letters.delivery(mailbox, letter.model_copy(update={"envelope": envelope}), Status.NEW)
        delivery.replays = envelope.replays
        delivery.stored_ms = float(now)
        delivery.code = delivery.reason = None
        answer = self._expect(envelope.id, [mailbox])

        def settle(change: Change) -> None:
            if change.failure(0) is not None:
                mailbox.reserved -= 1
                return
            mailbox.dead -= 1
            bus.recorder.replayed(delivery)
            item = Item(envelope, data, delivery, stored_at=bus.clock.monotonic())
            mailbox.arrived(envelope.id, item if mailbox.wants(len(data)) else None)
            bus.dispatch.kick(mailbox)

        mailbox.reserved += 1
        change = Change(envelope.id, [Op("again", mailbox.hash, mailbox.maildir, envelope.id, data)], settle)
        await bus.commits.commit(change, atomic=True)
        if (error := change.failure(0)) is not None:
            self.forget(answer)
            raise storage_error("replay to", mailbox.maildir.path, error) from error
        return answer

    async def _publish_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> Answer | str:
        """Send a message that never had a target to its subject again, under its own id."""
        await self._judge.make_targets(letter)
        publication = self._publication(mailbox, letter, envelope, fresh_budget)
        answer = self._expect(envelope.id, self._judge.targets(letter))
        try:
            await run_pipeline(self._stages, publication)
        except BaseException:
            self.forget(answer)
            raise
        if not _was_stored(publication):
            self.forget(answer)
            return self._keep(mailbox, letter, publication)
        mailbox.dead -= 1
        self._note_published(mailbox, letter, publication)
        refused = {one.endpoint_hash for one in publication.rejected or ()}
        refused |= {one.target.mailbox.hash for one in publication.unstored or ()}
        for target in refused:
            self._answer(envelope.id, target, False)
        return answer

    def _publication(self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool) -> Publication:
        bus = self._bus
        now = bus.clock.now_ms()
        publication = Publication(envelope.subject, envelope.payload, envelope.sender)
        publication.is_broadcast = is_pattern(envelope.subject)
        publication.reply_to = envelope.reply_to
        publication.origin = envelope.origin
        publication.data = orjson.dumps(envelope.payload)  # it was accepted once, whatever the limit is by now
        publication.id = publication.trace_id = envelope.id
        publication.created_ms = parse_iso(envelope.created_at)
        # It is stored now, however long ago it was made: times count on from when it was stamped.
        publication.started = bus.clock.monotonic() - (now - publication.created_ms) / 1000
        publication.replays = letter.replays + 1
        publication.replayed_at = iso(now)
        budget = renewed(envelope.budget, now, bus.config.budget, fresh=fresh_budget)
        publication.budget = before_delivery(budget, mailbox.subject) if letter.stage == "target" else budget
        publication.replaces = Op("gone", mailbox.hash, mailbox.maildir, letter.message_id)
        return publication

    def _keep(self, mailbox: Mailbox, letter: DeadLetter, publication: Publication) -> str:
        """Undo in the index what a refusal noted there, and say what must be waited for."""
        status = Status.NO_SUBSCRIBER if letter.code == Code.NO_MATCH else Status.FAILED
        self._bus.index.note(self._bus.dead_letters.delivery(mailbox, letter, status))
        reasons = {one.reason for one in publication.rejected or ()}
        return f"{publication.subject} refuses it: {', '.join(sorted(reasons)) or Reason.CIRCUIT_OPEN}"

    def _note_published(self, mailbox: Mailbox, letter: DeadLetter, publication: Publication) -> None:
        """Note a replay to the subject; where that has the mailbox it lay in, its row is a new delivery's already."""
        bus = self._bus
        if all(target.mailbox is not mailbox for target in publication.targets):
            bus.index.note(bus.dead_letters.delivery(mailbox, letter, Status.REPLACED))
        bus.recorder.event(
            EventKind.REPLAYED,
            time=bus.clock.now_ms(),
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

    def _settled(self, item: Item, handled: bool) -> None:
        if self._answers:
            self._answer(item.delivery.message_id, item.delivery.target, handled)

    def _answer(self, message_id: str, target: str, handled: bool) -> None:
        answer = self._answers.pop((message_id, target), None)
        if answer is not None:
            answer.note(target, handled)


def _now(item: PlanItem, verdict: str) -> PlanItem:
    """Return an item with the verdict that a run found."""
    return item.model_copy(update={"verdict": verdict, "detail": None})


def _was_stored(publication: Publication) -> bool:
    """Tell whether any target got its copy or had it parked: the dead letter is gone then."""
    return bool(publication.delivered or publication.failures)


def _trim(kept: dict[str, Any], spare: list[str]) -> None:
    """Forget the oldest of those to spare, as far as there are too many."""
    for one in spare[: max(len(kept) - _KEPT, 0)]:
        del kept[one]

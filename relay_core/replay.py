"""Replay: planned, then run, by whoever holds the bus; it goes on when the operator's screen is gone.

1. A plan is a frozen selection with a verdict per message. Planning changes nothing; what fails
   later is not in it.
2. A run puts each message back: to the target whose copy it is, or, if it never had one, to its
   subject. It keeps the id, the hops and the chain (unless a fresh budget is asked for), renews
   the TTL, and spends nothing of the sender's rate limit.
3. Taking a message out of ``failed/`` and putting it back is one journaled change: whenever the
   process is killed, the message is in exactly one of the two.
4. A run waits by itself while a breaker is open or pressure is above the warning. A canary run
   tries 1, then 10, then the rest, and stops when any of a step fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Literal

from relay_core.backpressure import check_backpressure
from relay_core.breaker import CircuitState
from relay_core.budget import clamp_budget, refuse_budget, spend
from relay_core.bus import Bus
from relay_core.clock import iso, parse_iso, sleep
from relay_core.commit import Change, Op
from relay_core.deadletters import DeadLetter, DeadLetterFilter
from relay_core.delivery import Delivery, Status, TargetKind
from relay_core.envelope import Budget, Envelope, encode_envelope
from relay_core.errors import NotFound
from relay_core.files import storage_error
from relay_core.lookups import spans
from relay_core.mailbox import Item, Mailbox
from relay_core.model import WireModel
from relay_core.payload import encode_payload
from relay_core.pipeline import run_pipeline
from relay_core.publication import Publication
from relay_core.results import PublishResult

_OUTSTANDING = 64
_LOOK_AGAIN_SECS = 0.25
_CANARY_STEPS = (1, 10)
_KEPT = 100


class Verdict:
    """What a replay would do with a dead letter."""

    WILL_DELIVER = "will_deliver"
    BREAKER_OPEN = "breaker_open"
    MAILBOX_FULL = "mailbox_full"
    DENIED = "denied"
    ALREADY_REPLAYED = "already_replayed"
    MALFORMED = "malformed"
    NO_TARGET = "no_target"
    OVER_BUDGET = "over_budget"


REPLAYABLE = (Verdict.WILL_DELIVER, Verdict.BREAKER_OPEN, Verdict.MAILBOX_FULL)
"""Verdicts that a run acts on; the last two it waits for."""


class PlanItem(WireModel):
    """One message of a plan."""

    message_id: str
    endpoint_hash: str
    endpoint_subject: str
    verdict: str
    detail: str | None = None


class ReplayPlan(WireModel):
    """A frozen selection of dead letters."""

    id: str
    created_at: str
    fresh_budget: bool
    items: tuple[PlanItem, ...]


class ReplayOutcome(WireModel):
    """What became of a plan."""

    delivered: int
    failed: int
    skipped: int
    state: Literal["running", "waiting", "paused", "finished", "cancelled", "stopped"] = "finished"
    detail: str | None = None
    """What a run waits for, or why it stopped."""
    total: int = 0


class Replays:
    """Plans and runs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._plans: dict[str, ReplayPlan] = {}
        self._runs: dict[str, ReplayRun] = {}
        self._watched: dict[tuple[str, str], asyncio.Future[bool]] = {}
        bus.dispatch.on_settled = self._settled

    async def plan(
        self, *, ids: Iterable[str] | None = None, filter: DeadLetterFilter | None = None, fresh_budget: bool = False
    ) -> ReplayPlan:
        """Freeze a selection and say what a replay would do with each.

        Raises:
            NotFound: if an id was never a message.
        """
        letters = await self._bus.dead_letters.all(filter=filter, include_partial=True)
        items: list[PlanItem] = []
        if ids is None:
            items = [self._judge(letter, fresh_budget) for letter in letters if not letter.partial]
        else:
            by_id: dict[str, list[DeadLetter]] = {}
            for letter in letters:
                by_id.setdefault(letter.message_id, []).append(letter)
            for message_id in dict.fromkeys(ids):
                found = by_id.get(message_id)
                if found:
                    items.extend(self._judge(letter, fresh_budget) for letter in found)
                else:
                    items.append(await self._gone(message_id))
        now = self._bus.clock.now_ms()
        plan = ReplayPlan(id=self._bus.new_id(), created_at=iso(now), fresh_budget=fresh_budget, items=tuple(items))
        self._plans[plan.id] = plan
        _trim(self._plans)
        return plan

    def start(self, plan_id: str, *, rate: float | None = None, canary: bool = False) -> ReplayRun:
        """Begin to carry out a plan; each plan runs once.

        Raises:
            NotFound: if there is no such plan, or it has been run.
        """
        plan = self._plans.pop(plan_id, None)
        if plan is None:
            why = "it has been run already" if plan_id in self._runs else "make one with plan_replay"
            raise NotFound(f"no replay plan {plan_id}: {why}", what=plan_id)
        run = ReplayRun(self, plan, rate=rate, canary=canary)
        self._runs[plan_id] = run
        _trim(self._runs)
        self._bus.tasks.start(run.work(), name=f"replay {plan_id}")
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

    async def edit(self, message_id: str, payload: Any, *, endpoint: str | None = None) -> PublishResult:
        """Publish an edited copy of a dead letter, which it replaces once the copy is stored.

        Raises:
            NotFound: if there is no such dead letter.
            InvalidPayload: if the new payload breaks a rule; nothing has changed then.
        """
        bus = self._bus
        mailbox, letter = await asyncio.to_thread(bus.dead_letters.find, message_id, endpoint)
        if letter.envelope is None:
            raise NotFound(f"{message_id} is no message and cannot be replayed", what=message_id)
        publication = self._publication(mailbox, letter, letter.envelope, fresh_budget=False)
        publication.data = encode_payload(payload, limit=bus.config.limits.max_payload_bytes)
        publication.id = bus.new_id()
        publication.created_ms = bus.clock.now_ms()
        publication.replay_of = message_id
        publication.replays = 0
        result = await run_pipeline(self._stages(), publication)
        if publication.delivered:
            self._removed(mailbox, letter, Status.REPLACED)
        return result

    async def put_back(self, item: PlanItem, *, fresh_budget: bool) -> asyncio.Future[bool] | None:
        """Put one dead letter back on its way.

        Returns None if it is not there any more (or is refused for good), else a future that tells
        whether it was handled, or just stored where nobody handles.

        Raises:
            StorageError: if the disk refuses; the dead letter stays.
        """
        bus = self._bus
        try:
            mailbox, letter = await asyncio.to_thread(bus.dead_letters.find, item.message_id, item.endpoint_hash)
        except NotFound:
            return None
        envelope = letter.envelope
        if envelope is None or self._judge(letter, fresh_budget).verdict not in REPLAYABLE:
            return None
        if letter.stage == "gate":
            return await self._publish_again(mailbox, letter, envelope, fresh_budget)
        return await self._store_again(mailbox, letter, envelope, fresh_budget)

    def blocked(self, item: PlanItem) -> str | None:
        """Return what a replay to this target should wait for, or None."""
        bus = self._bus
        mailbox = bus.mailboxes.get(item.endpoint_hash)
        if mailbox is None:
            return None
        state = bus.breakers.states().get(mailbox.hash)
        if state is not None and state.state is CircuitState.OPEN and bus.breakers.retry_in(mailbox.hash) > 0:
            return f"breaker of {mailbox.subject} is open"
        config = bus.config.reliability.backpressure
        verdict = check_backpressure(mailbox.load, config)
        if config.enabled and (not verdict.allowed or verdict.pressure >= config.pressure_warning_at):
            return f"pressure of {mailbox.subject} is {verdict.pressure:.0%}"
        return None

    async def pause_before_looking_again(self) -> None:
        """Wait a moment of the bus's time."""
        await sleep(self._bus.clock, _LOOK_AGAIN_SECS)

    async def pace(self, seconds: float) -> None:
        """Wait between two messages of a run with a rate."""
        await sleep(self._bus.clock, seconds)

    def _judge(self, letter: DeadLetter, fresh_budget: bool) -> PlanItem:
        bus = self._bus
        mailbox = bus.mailboxes.get(letter.endpoint_hash)
        subject = mailbox.subject if mailbox is not None else ""

        def item(verdict: str, detail: str | None = None) -> PlanItem:
            return PlanItem(
                message_id=letter.message_id,
                endpoint_hash=letter.endpoint_hash,
                endpoint_subject=subject,
                verdict=verdict,
                detail=detail,
            )

        envelope = letter.envelope
        if envelope is None:
            return item(Verdict.MALFORMED, letter.reason)
        if mailbox is None:
            return item(Verdict.NO_TARGET)
        access = bus.access.check(envelope.sender, envelope.subject)
        if not access.allowed:
            return item(Verdict.DENIED, access.reason)
        if letter.stage == "gate":
            if not self._has_target(envelope.subject):
                return item(Verdict.NO_TARGET, "still nobody to deliver to")
            budget = self._renewed(envelope.budget, fresh_budget)
            refusal = refuse_budget(budget, envelope.subject, bus.clock.now_ms())
            if refusal is not None:
                return item(Verdict.OVER_BUDGET, refusal[0])
        elif not mailbox.about.registered and mailbox.about.kind == TargetKind.ENDPOINT:
            return item(Verdict.NO_TARGET, "the endpoint is not registered any more")
        if bus.breakers.retry_in(mailbox.hash) > 0:
            return item(Verdict.BREAKER_OPEN)
        if not check_backpressure(mailbox.load, bus.config.reliability.backpressure).allowed:
            return item(Verdict.MAILBOX_FULL)
        return item(Verdict.WILL_DELIVER)

    def _has_target(self, subject: str) -> bool:
        bus = self._bus
        return bool(
            bus.mailboxes.endpoint(subject) or bus.adapters.targets(subject, None) or bus.subscriptions.match(subject)
        )

    async def _gone(self, message_id: str) -> PlanItem:
        known = await self._bus.index.run(lambda db: spans(db, message_id))
        if not known:
            raise NotFound(f"no message {message_id}", what=message_id)
        span = known[0]
        return PlanItem(
            message_id=message_id,
            endpoint_hash=span.target,
            endpoint_subject=span.target_subject,
            verdict=Verdict.ALREADY_REPLAYED,
            detail=f"it is {span.status} now",
        )

    def _renewed(self, budget: Budget, fresh: bool) -> Budget:
        now = self._bus.clock.now_ms()
        ceilings = self._bus.config.budget
        if fresh:
            return clamp_budget(now, None, ceilings)
        return budget.model_copy(update={"ttl": now + ceilings.ttl_ms})

    async def _store_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> asyncio.Future[bool]:
        """Put a target's own copy back into its mailbox."""
        bus = self._bus
        budget = self._renewed(envelope.budget, fresh_budget)
        if fresh_budget:
            budget = spend(budget, mailbox.subject)
        envelope = envelope.model_copy(update={"budget": budget, "replays": letter.replays + 1})
        data = encode_envelope(envelope)
        delivery = bus.dead_letters.delivery(mailbox, letter, Status.NEW)
        assert delivery is not None
        handled = self._watch(mailbox, envelope.id)

        def settle(change: Change) -> None:
            if change.failure(0) is not None:
                mailbox.reserved -= 1
                return
            mailbox.dead -= 1
            self._note_replayed(delivery, budget, envelope.replays)
            item = Item(envelope, data, delivery, stored_at=bus.clock.monotonic())
            mailbox.arrived(envelope.id, item if mailbox.wants(len(data)) else None)
            bus.dispatch.kick(mailbox)

        mailbox.reserved += 1
        change = Change(envelope.id, [Op("again", mailbox.hash, mailbox.maildir, envelope.id, data)], settle)
        await bus.commits.commit(change, atomic=True)
        if (error := change.failure(0)) is not None:
            self._watched.pop((envelope.id, mailbox.hash), None)
            raise storage_error("replay to", mailbox.maildir.path, error) from error
        if not mailbox.keep and not handled.done():
            self._watched.pop((envelope.id, mailbox.hash), None)
            handled.set_result(True)
        return handled

    async def _publish_again(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, fresh_budget: bool
    ) -> asyncio.Future[bool]:
        """Send a message that never had a target to its subject again, under its own id."""
        bus = self._bus
        publication = self._publication(mailbox, letter, envelope, fresh_budget=fresh_budget)
        await run_pipeline(self._stages(), publication)
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        stored.set_result(publication.delivered > 0)
        if publication.delivered:
            mailbox.dead -= 1
            delivery = bus.dead_letters.delivery(mailbox, letter, Status.NEW)
            if delivery is not None:
                delivery.replays = publication.replays
                bus.recorder.replayed(delivery)
        return stored

    def _publication(
        self, mailbox: Mailbox, letter: DeadLetter, envelope: Envelope, *, fresh_budget: bool
    ) -> Publication:
        bus = self._bus
        publication = Publication(
            envelope.subject, envelope.payload, envelope.sender, envelope.reply_to, None, None, None, None
        )
        publication.data = encode_payload(envelope.payload, limit=bus.config.limits.max_payload_bytes)
        publication.id = publication.trace_id = envelope.id
        publication.created_ms = parse_iso(envelope.created_at)
        publication.started = bus.clock.monotonic()
        publication.replays = letter.replays + 1
        budget = self._renewed(envelope.budget, fresh_budget)
        chain = budget.ancestor_chain
        if letter.stage == "target" and chain and chain[-1] == mailbox.subject:
            # A target's copy has paid for its delivery already; publishing it again pays anew.
            budget = budget.model_copy(
                update={
                    "hop_count": max(budget.hop_count - 1, 0),
                    "ancestor_chain": chain[:-1],
                    "call_budget_remaining": budget.call_budget_remaining + 1,
                }
            )
        publication.budget = budget
        publication.replaces = Op("gone", mailbox.hash, mailbox.maildir, letter.message_id)
        return publication

    def _stages(self) -> list[Any]:
        """Return the stages a replay passes: neither validated, stamped nor rate-limited again."""
        names = ("Access", "BudgetGate", "Match", "Deliver", "Settle")
        return [stage for stage in self._bus.stages if type(stage).__name__ in names]

    def _watch(self, mailbox: Mailbox, message_id: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._watched[message_id, mailbox.hash] = future
        return future

    def _settled(self, item: Item, handled: bool) -> None:
        if self._watched:
            future = self._watched.pop((item.delivery.message_id, item.delivery.target), None)
            if future is not None and not future.done():
                future.set_result(handled)

    def _note_replayed(self, delivery: Delivery, budget: Budget, replays: int) -> None:
        now = float(self._bus.clock.now_ms())
        delivery.replays = replays
        delivery.expires_ms = budget.ttl
        delivery.stored_ms = now
        delivery.code = delivery.reason = None
        self._bus.recorder.replayed(delivery)

    def _removed(self, mailbox: Mailbox, letter: DeadLetter, status: str) -> None:
        mailbox.dead -= 1
        delivery = self._bus.dead_letters.delivery(mailbox, letter, status)
        if delivery is not None:
            self._bus.recorder.removed(delivery)


class ReplayRun:
    """A plan under way."""

    def __init__(self, replays: Replays, plan: ReplayPlan, *, rate: float | None, canary: bool) -> None:
        self.plan = plan
        self.rate = rate
        self.canary = canary
        self._replays = replays
        self._delivered = self._failed = self._skipped = 0
        self._state: Literal["running", "waiting", "paused", "finished", "cancelled", "stopped"] = "running"
        self._detail: str | None = None
        self._may_go = asyncio.Event()
        self._may_go.set()
        self._cancelled = False
        self._done = asyncio.Event()
        self._outstanding: set[asyncio.Future[bool]] = set()

    def progress(self) -> ReplayOutcome:
        """Return how far the run has come."""
        return ReplayOutcome(
            delivered=self._delivered,
            failed=self._failed,
            skipped=self._skipped,
            state=self._state,
            detail=self._detail,
            total=len(self.plan.items),
        )

    def pause(self) -> None:
        """Replay nothing more until `resume`."""
        self._may_go.clear()

    def resume(self) -> None:
        """Go on."""
        self._may_go.set()

    def cancel(self) -> None:
        """Leave the rest as dead letters."""
        self._cancelled = True
        self._may_go.set()

    async def wait(self) -> ReplayOutcome:
        """Return the outcome once the run has ended."""
        await self._done.wait()
        return self.progress()

    async def work(self) -> None:
        """Carry out the plan."""
        todo = [item for item in self.plan.items if item.verdict in REPLAYABLE]
        self._skipped = len(self.plan.items) - len(todo)
        try:
            for step in self._steps(todo):
                before = self._failed
                for item in step:
                    if not await self._may_replay(item):
                        break
                    await self._replay(item)
                await self._answers(all_of_them=True)
                if self._cancelled or (self.canary and self._failed > before and step is not todo):
                    break
            left = len(self.plan.items) - self._delivered - self._failed - self._skipped
            self._skipped += left
            if self._cancelled:
                self._end("cancelled", None)
            elif left:
                self._end("stopped", f"the canary failed: {left} not tried")
            else:
                self._end("finished", None)
        except BaseException as error:
            self._end("stopped", f"{type(error).__name__}: {error}")
            raise
        finally:
            self._done.set()

    def _steps(self, todo: list[PlanItem]) -> list[list[PlanItem]]:
        if not self.canary:
            return [todo]
        steps, rest = [], todo
        for size in _CANARY_STEPS:
            steps.append(rest[:size])
            rest = rest[size:]
        return [step for step in (*steps, rest) if step]

    async def _may_replay(self, item: PlanItem) -> bool:
        """Wait until nothing holds the run up; return False once it is cancelled."""
        while not self._cancelled:
            if not self._may_go.is_set():
                self._state, self._detail = "paused", "by the operator"
                await self._may_go.wait()
                continue
            blocked = self._replays.blocked(item)
            if blocked is None:
                self._state, self._detail = "running", None
                return True
            self._state, self._detail = "waiting", blocked
            await self._replays.pause_before_looking_again()
        return False

    async def _replay(self, item: PlanItem) -> None:
        answer = await self._replays.put_back(item, fresh_budget=self.plan.fresh_budget)
        if answer is None:
            self._skipped += 1
            return
        self._outstanding.add(answer)
        if len(self._outstanding) >= _OUTSTANDING:
            await self._answers(all_of_them=False)
        if self.rate:
            await self._replays.pace(1 / self.rate)

    async def _answers(self, *, all_of_them: bool) -> None:
        if not self._outstanding:
            return
        when = asyncio.ALL_COMPLETED if all_of_them else asyncio.FIRST_COMPLETED
        done, self._outstanding = await asyncio.wait(self._outstanding, return_when=when)
        handled = sum(answer.result() for answer in done)
        self._delivered += handled
        self._failed += len(done) - handled

    def _end(self, state: Literal["finished", "cancelled", "stopped"], detail: str | None) -> None:
        self._state, self._detail = state, detail


def _trim(kept: dict[str, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]

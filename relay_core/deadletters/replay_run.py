"""The run of a plan: its pace, progress and outcome.

The run decides the pace (rate, canary, pauses, waiting); a `Replayer` (replay.py) resends single messages and reports
their answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol

from relay_core.clock import Clock, call_later
from relay_core.errors import StorageError
from relay_core.messages.replay_plan import PlanItem, ReplayOutcome, ReplayPlan, RunState
from relay_core.storage.mailbox import Mailbox

_OUTSTANDING = 64
_POLL_SECS = 0.25
_CANARIES = (1, 11)
_TOLERANCE_SECS = 1e-6


class Replayer(Protocol):
    """Resends messages for a run."""

    async def resend(self, item: PlanItem, *, fresh_budget: bool, acknowledged: bool) -> Answer | str | PlanItem:
        """Resend one dead letter; if it is not resent, return the reason to wait, or its verdict."""
        ...

    def look(self, answer: Answer, *, acknowledged: bool) -> None:
        """Answer for targets that will not; with `acknowledged`, a stored message without a consumer is no answer."""
        ...

    def forget(self, answer: Answer) -> None:
        """Stop waiting for an answer."""
        ...


class Answer:
    """The outcome of one replayed message at its targets."""

    def __init__(self, message_id: str, targets: list[Mailbox]) -> None:
        self.message_id = message_id
        self.handled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True if any of them handled it."""
        self._awaited = {mailbox.hash: mailbox for mailbox in targets}
        self._was_handled = False

    def awaited(self) -> list[Mailbox]:
        """Return the targets that have not answered."""
        return list(self._awaited.values())

    def note(self, target: str, handled: bool) -> None:
        """Record the answer of a target."""
        del self._awaited[target]
        self._was_handled = self._was_handled or handled
        if not self._awaited and not self.handled.done():
            self.handled.set_result(self._was_handled)


class ReplayRun:
    """A running plan."""

    def __init__(self, replays: Replayer, clock: Clock, plan: ReplayPlan, *, rate: float | None, canary: bool) -> None:
        self.plan = plan
        self.rate = rate
        self.canary = canary
        self._replays = replays
        self._clock = clock
        self._delivered = self._failed = self._skipped = self._tried = 0
        self._state: RunState = "running"
        self._detail: str | None = None
        self._paused = self._cancelled = False
        self._skips: Counter[str] = Counter()
        self._unproven = False
        """True if the operator has resumed a canary without an acknowledgement."""
        self._awaits_acknowledgement = False
        self._outstanding: list[Answer] = []
        self._next_at = clock.monotonic()
        self._changed = asyncio.Event()
        self._done = asyncio.Event()

    def progress(self) -> ReplayOutcome:
        """Return the progress of the run."""
        return ReplayOutcome(
            delivered=self._delivered,
            failed=self._failed,
            skipped=self._skipped,
            state=self._state,
            detail=self._detail,
            total=len(self.plan.items),
            skips=dict(self._skips.most_common()),
        )

    @property
    def has_ended(self) -> bool:
        """Return True once the run has ended."""
        return self._done.is_set()

    def pause(self) -> None:
        """Replay nothing more until `resume`."""
        self._paused = True
        self._changed.set()

    def resume(self) -> None:
        """Resume the replay; a canary that waits for an acknowledgement continues without it."""
        self._unproven = self._unproven or (self._awaits_acknowledgement and not self._paused)
        self._paused = False
        self._changed.set()

    def cancel(self) -> None:
        """Leave the rest as dead letters; messages already resent stay with their targets and count as delivered."""
        self._cancelled = True
        self._changed.set()

    async def wait(self) -> ReplayOutcome:
        """Return the outcome once the run has ended."""
        await self._done.wait()
        return self.progress()

    async def work(self) -> None:
        """Run the plan."""
        ending: tuple[RunState, str | None] = ("stopped", "the bus was closed")
        try:
            why = await self._replay_all()
            await self._take_answers(leave=0)
            if self._cancelled:
                ending = ("cancelled", None)
            elif why is not None:
                ending = ("stopped", why)
            else:
                ending = ("finished", None)
        except Exception as error:
            ending = ("stopped", f"{type(error).__name__}: {error}")
            raise  # to the log
        finally:
            for answer in self._outstanding:
                self._replays.forget(answer)
            self._delivered += len(self._outstanding)
            self._skipped = len(self.plan.items) - self._delivered - self._failed
            self._state, self._detail = ending
            self._done.set()

    async def _replay_all(self) -> str | None:
        """Replay the messages in order; return the reason if not all were tried."""
        todo = self.plan.replayable()
        self._skipped = len(self.plan.items) - len(todo)
        self._skips.update(self.plan.skips())
        for position, at in enumerate(todo, 1):
            try:
                await self._replay(self.plan.items[at])
            except StorageError as error:
                return error.message
            if self._cancelled:
                return None
            if self.canary and self._tried in _CANARIES and position < len(todo):
                await self._take_answers(leave=0, acknowledged=True)
                if self._failed:
                    return f"the canary failed: {len(todo) - position} not tried"
        return None

    async def _replay(self, item: PlanItem) -> None:
        """Resend a message as soon as it is allowed."""
        while not self._cancelled:
            if self._paused:
                self._state, self._detail = "paused", "by the operator"
                await self._wait(None)
                continue
            if (early := self._next_at - self._clock.monotonic()) > _TOLERANCE_SECS:
                self._state, self._detail = "running", None
                await self._wait(early)
                continue
            answer = await self._replays.resend(item, fresh_budget=self.plan.fresh_budget, acknowledged=self._is_canary)
            if isinstance(answer, str):
                self._state, self._detail = "waiting", answer
                await self._wait(_POLL_SECS)
                continue
            self._state, self._detail = "running", None
            if isinstance(answer, PlanItem):
                self._skipped += 1
                self._skips[answer.verdict] += 1
            else:
                self._tried += 1
                self._outstanding.append(answer)
                answer.handled.add_done_callback(lambda _: self._changed.set())
                if self.rate is not None:
                    self._next_at = self._clock.monotonic() + 1 / self.rate
                await self._take_answers(leave=_OUTSTANDING - 1)
            return

    @property
    def _is_canary(self) -> bool:
        """Return True if the next message must be handled before the rest is tried."""
        return self.canary and not self._unproven and self._tried < _CANARIES[-1]

    async def _take_answers(self, *, leave: int, acknowledged: bool = False) -> None:
        """Count the answers; wait until at most `leave` are missing.

        With `acknowledged`, a message stored without a handler counts once it is acknowledged.
        """
        if self.canary and not acknowledged and not leave:
            self._look(acknowledged=False)  # messages of the last step need no acknowledgement
        try:
            await self._count_answers(leave, acknowledged)
        finally:
            self._awaits_acknowledgement = False

    async def _count_answers(self, leave: int, acknowledged: bool) -> None:
        while True:
            if acknowledged and self._unproven:
                acknowledged = False
                self._look(acknowledged=False)
            for answer in [answer for answer in self._outstanding if answer.handled.done()]:
                self._outstanding.remove(answer)
                if answer.handled.result():
                    self._delivered += 1
                else:
                    self._failed += 1
            if len(self._outstanding) <= leave or self._cancelled:
                return
            if acknowledged:
                self._show_awaited()
            if not await self._wait(_POLL_SECS):
                self._look(acknowledged=acknowledged)

    def _look(self, *, acknowledged: bool) -> None:
        for answer in self._outstanding:
            self._replays.look(answer, acknowledged=acknowledged)

    def _show_awaited(self) -> None:
        """Show what a canary waits for; while no consumer has claimed its message, the run counts as paused."""
        awaited = [(mailbox, answer.message_id) for answer in self._outstanding for mailbox in answer.awaited()]
        unclaimed = [mailbox for mailbox, id in awaited if id not in mailbox.claimed and not mailbox.is_handled]
        self._awaits_acknowledgement = bool(awaited)
        if self._paused:
            self._state, self._detail = "paused", "by the operator"
        elif unclaimed:
            where = sorted({mailbox.subject for mailbox in unclaimed})
            self._state = "paused"
            self._detail = (
                f"the canary waits for an acknowledgement from {where[0]}"
                + (f" and {len(where) - 1} more" if len(where) > 1 else "")
                + ": no consumer has taken the message yet; resume goes on without it"
            )
        elif awaited:
            self._state, self._detail = (
                "waiting",
                f"the canary waits for an acknowledgement from {awaited[0][0].subject}",
            )

    async def _wait(self, seconds: float | None) -> bool:
        """Wait for a change of this run; return False if there was none within `seconds` of the bus's time."""
        self._changed.clear()
        overdue = False

        def wake() -> None:
            nonlocal overdue
            overdue = True
            self._changed.set()

        timer = call_later(self._clock, seconds, wake) if seconds is not None else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return not overdue

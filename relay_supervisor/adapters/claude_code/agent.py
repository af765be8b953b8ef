"""One agent: its turns, one at a time, and the program that keeps running between them.

1. A turn may take ``turnTimeoutSecs`` or until the message expires, whichever is shorter, by the clock. Then the
   program is interrupted and ended, and the next turn resumes the session.
2. The model turns of a message are limited by ``maxTurns`` and its remaining call budget, whichever is smaller. The
   program reads the limit only at its start, so a message with another limit costs a restart that resumes the
   session: one second, where a limit that does not hold could cost a night of calls.
3. The session's id is on disk before the first output of a new session is read. A session that the program no longer
   has is replaced by a new one, once, and the delivery's detail says so.
4. A session is in one program at a time. A reload creates another instance of the agent while the old one's idle
   program still runs, so both share the agent's last session (`Sessions`): it is closed, and its program has exited,
   before another is opened.
5. A cancelled turn (by a stop, or by the bus) ends its program, whose state is unknown. A stop does not fail the turn:
   the bus cancels it right after, and dead-letters it as ``interrupted``. A finished turn whose answer has not been
   accepted yet fails, and the failure contains the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeAlias

from relay_core.adapters.interface import AdapterContext, DeliveryContext, DeliveryResult
from relay_core.clock import Timer, call_later
from relay_core.errors import StorageError
from relay_core.messages.envelope import Envelope
from relay_core.tasks import Tasks
from relay_supervisor.adapters.claude_code.answer import Answer, AnswerLost, excerpt
from relay_supervisor.adapters.claude_code.config import AgentConfig, ClaudeCodeConfig
from relay_supervisor.adapters.claude_code.memory import SessionMemory
from relay_supervisor.adapters.claude_code.options import make_options
from relay_supervisor.adapters.claude_code.program import Program
from relay_supervisor.adapters.claude_code.prompt import write_prompt
from relay_supervisor.adapters.claude_code.session import Session, SessionEnded
from relay_supervisor.adapters.claude_code.turn import SESSION_GONE, Outcome, TurnReader
from relay_supervisor.adapters.platform import clock_timeout

_CANCEL_SECS = 15.0
"""Longer than the bus takes to stop an adapter."""
_LEAST_PATIENCE_SECS = 30.0
"""For an answer after a turn that has used up its time; less than what the bus adds to that time."""

Sessions: TypeAlias = dict[str, Session]
"""The last session of each agent, of any instance of the adapter."""


class Agent:
    """An agent that handles messages."""

    def __init__(
        self,
        name: str,
        config: ClaudeCodeConfig,
        program: Program,
        context: AdapterContext,
        tasks: Tasks,
        sessions: Sessions,
        on_outcome: Callable[[str, Outcome], None],
    ) -> None:
        self._name = name
        self._config: AgentConfig = config.agents[name]
        self._turn_secs = config.turn_timeout_secs
        self._idle_secs = config.idle_secs
        self._program = program
        self._context = context
        self._tasks = tasks
        self._sessions = sessions
        self._on_outcome = on_outcome
        self._memory = SessionMemory(context.data_dir, name, self._config.cwd)
        self._session: Session | None = None
        self._closing: Session | None = None
        """The last session that was closed."""
        self._known_id: str | None = None
        self._idle: Timer | None = None
        self._one_turn = asyncio.Lock()
        self._publishing: Answer | None = None
        """The answer of a finished turn, until it has been accepted."""
        self._closed = False

    async def handle(self, envelope: Envelope, delivery: DeliveryContext) -> DeliveryResult:
        """Run the turn of one message, and publish its answer."""
        async with self._one_turn:
            self._stop_idle_timer()
            try:
                with Answer(self._context, envelope, delivery) as answer:
                    return await self._handle(envelope, delivery, answer)
            finally:
                if self._session is not None and not self._closed:
                    self._idle = call_later(self._context.clock, self._idle_secs, self._close_session)

    async def close(self) -> None:
        """End the program for good; a running turn is cancelled."""
        self._closed = True
        self._stop_idle_timer()
        self._close_session(interrupt=self._one_turn.locked())
        if self._publishing is not None:
            self._publishing.hurry()
            async with self._one_turn:
                pass  # it fails with its answer instead of being cancelled
        if self._closing is not None:
            await self._closing.closed()

    async def _handle(self, envelope: Envelope, delivery: DeliveryContext, answer: Answer) -> DeliveryResult:
        calls = envelope.budget.call_budget_remaining
        if calls == 0:
            return _failed("the message's call budget is used up", "call_budget")
        clock = self._context.clock
        ends_at = clock.monotonic() + self._turn_secs
        max_turns = min(calls, self._config.max_turns or calls)
        try:
            outcome, note = await self._within_time(envelope, delivery, answer, max_turns)
        except StorageError as error:
            return _failed(f"the session id could not be saved: {error.message}", error.code)
        self._on_outcome(self._name, outcome)
        if outcome.error is not None:
            return DeliveryResult(ok=False, error=outcome.error, code=outcome.code, retry_after=outcome.retry_after)
        detail = "; ".join([*note, f"session {self._known_id}, model turns: {outcome.turns}"])
        if envelope.reply_to is None:
            return DeliveryResult(ok=True, detail=f"{detail}; no reply was requested: {excerpt(outcome.text)}")
        patience = min(max(ends_at - clock.monotonic(), _LEAST_PATIENCE_SECS), delivery.remaining)
        return await self._publish(answer, outcome.text, patience, detail)

    async def _publish(self, answer: Answer, text: str, patience: float, detail: str) -> DeliveryResult:
        """Publish the answer until it is accepted."""
        self._publishing = answer
        try:
            await answer.publish(text, patience)
        except AnswerLost as lost:
            where = f"{lost}; it is in the transcript of session {self._known_id}"
            return _failed(where if lost.kept else f"{where}, and begins: {excerpt(text)}", lost.code)
        finally:
            self._publishing = None
        return DeliveryResult(ok=True, detail=detail)

    async def _within_time(
        self, envelope: Envelope, delivery: DeliveryContext, answer: Answer, max_turns: int
    ) -> tuple[Outcome, list[str]]:
        """Run a turn within its time limit."""
        remaining = delivery.remaining
        expired = Outcome(error="the message expired before there was a result", code="expired")
        if remaining <= 0:
            return expired, []
        limit: asyncio.Timeout | None = None
        try:
            async with clock_timeout(self._context.clock, min(self._turn_secs, remaining)) as limit:
                return await self._run(envelope, answer, max_turns)
        except TimeoutError:
            self._close_session(interrupt=True)
            if limit is None or not limit.expired():
                raise
            if self._closing is not None:
                await self._closing.closed()
            if remaining <= self._turn_secs:
                return expired, []
            return Outcome(error=f"no result within {self._turn_secs:g} s (turnTimeoutSecs)", code="timeout"), []
        except BaseException:
            self._close_session(interrupt=True)
            raise

    async def _run(self, envelope: Envelope, answer: Answer, max_turns: int) -> tuple[Outcome, list[str]]:
        """Run the turn in the current session, or in a new one if the session is gone."""
        prompt = write_prompt(envelope)
        note: list[str] = []
        while True:
            try:
                session = await self._find_session(max_turns)
                outcome = await self._ask(session, prompt, answer)
            except SessionEnded as end:
                outcome = end.outcome
                self._close_session()
            if self._closed and outcome.error is not None:
                await _wait_for_cancel()
            if outcome.code != SESSION_GONE or note:
                return outcome, note
            note.append("the session was gone, so a new one was started")
            self._close_session()
            self._known_id = None
            await asyncio.to_thread(self._memory.forget)

    async def _ask(self, session: Session, prompt: str, answer: Answer) -> Outcome:
        reader = TurnReader(answer.progress, self._context.clock.now_ms, busy=session.busy)
        messages = session.ask(prompt, self._remember)
        try:
            async for message in messages:
                if (outcome := reader.feed(message)) is not None:
                    return outcome
        finally:
            await messages.aclose()  # type: ignore[attr-defined]  # an async generator
        raise AssertionError("a session raises when it ends")

    async def _find_session(self, max_turns: int) -> Session:
        """Return the running session, or open one that resumes the conversation; raises SessionEnded."""
        session = self._session
        if session is not None and session.ended is None and session.max_turns == max_turns:
            return session
        resume = session.id if session is not None else None
        self._close_session()
        if (last := self._sessions.get(self._name)) is not None:
            last.close()
            await last.closed()  # it has saved what the next one resumes
        if not await asyncio.to_thread(os.access, self._config.cwd, os.R_OK | os.X_OK):
            why = f"the directory {self._config.cwd} does not exist or is not accessible: create it, or correct cwd"
            raise SessionEnded(Outcome(error=why, code="no_directory"))
        if resume is None and self._config.resume_sessions:
            resume = self._known_id = await asyncio.to_thread(self._memory.load)
        if self._closed:
            await _wait_for_cancel()
        options = make_options(self._config, self._program, max_turns=max_turns, resume=resume)
        session = self._session = self._sessions[self._name] = Session(options, self._tasks, f"{self._name}'s session")
        await session.open()
        return session

    async def _remember(self, session_id: str) -> None:
        if session_id != self._known_id:
            await asyncio.to_thread(self._memory.save, session_id)
            self._known_id = session_id

    def _close_session(self, *, interrupt: bool = False) -> None:
        """Close the program in the background, if there is one."""
        if self._session is not None:
            self._closing, self._session = self._session, None
            self._closing.close(interrupt=interrupt)

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


async def _wait_for_cancel() -> None:
    """Wait for the bus to cancel this delivery, which it does when the adapter has stopped."""
    await asyncio.sleep(_CANCEL_SECS)


def _failed(error: str, code: str) -> DeliveryResult:
    return DeliveryResult(ok=False, error=error, code=code)

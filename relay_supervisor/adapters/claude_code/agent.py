"""One agent: its turns, one at a time, and the program that is kept running between them.

1. A turn's time is the smaller of ``turnTimeoutSecs`` and what the message has left to live, by the clock, whatever the
   program says or does not say. When it is over, the program is interrupted, ended, and the next turn resumes.
2. The model turns of a message are the smaller of ``maxTurns`` and its remaining call budget. The program takes
   that limit only as it starts, so a message with another one costs a restart that resumes the session: a second,
   where a limit that does not hold could cost a night of calls.
3. The session's id is on disk before the first word of a new session is heard. A session that the program does not
   have any more is replaced by a new one, once, and the delivery's detail says so.
4. A session is in one program at a time. A reload makes another instance of the agent while the old one's idle program
   still runs, so both know the agent's last session (`Sessions`): it is closed, and gone, before another is opened.
5. A turn that is cut off (we stop, or the bus cancels it) takes its program with it: nobody knows what state it is in.
   A stop does not fail it: the bus cuts it off right after, and parks it as ``interrupted``. A turn that is over, but
   whose answer has yet to be taken, fails with its answer instead.
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
from relay_supervisor.adapters.claude_code.answer import Answer, AnswerLost, beginning
from relay_supervisor.adapters.claude_code.config import AgentConfig, ClaudeCodeConfig
from relay_supervisor.adapters.claude_code.memory import SessionMemory
from relay_supervisor.adapters.claude_code.options import make_options
from relay_supervisor.adapters.claude_code.program import Program
from relay_supervisor.adapters.claude_code.prompt import write_prompt
from relay_supervisor.adapters.claude_code.session import Session, SessionEnded
from relay_supervisor.adapters.claude_code.turn import SESSION_GONE, Outcome, TurnReader

_CUT_OFF_SECS = 15.0
"""Longer than the bus takes to stop an adapter."""
_LEAST_PATIENCE_SECS = 30.0
"""For an answer to be taken after a turn that has used up its time; less than what the bus adds to that time."""

Sessions: TypeAlias = dict[str, Session]
"""The last session of each agent, whichever instance of the adapter opened it."""


class Agent:
    """An agent that takes messages."""

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
        self._leaving: Session | None = None
        """The last one that was let go."""
        self._known_id: str | None = None
        self._idle: Timer | None = None
        self._one_turn = asyncio.Lock()
        self._publishing: Answer | None = None
        """The answer of a turn that is over, until it has been taken."""
        self._closed = False

    async def take(self, envelope: Envelope, delivery: DeliveryContext) -> DeliveryResult:
        """Run the turn of one message, and publish its answer."""
        async with self._one_turn:
            self._stay()
            try:
                with Answer(self._context, envelope, delivery) as answer:
                    return await self._take(envelope, delivery, answer)
            finally:
                self._wait_idle()

    async def close(self) -> None:
        """End the program, for good; a turn under way is cut off."""
        self._closed = True
        self._stay()
        under_way = self._one_turn.locked()
        self._let_go(interrupt=under_way)
        if self._publishing is not None:
            self._publishing.hurry()
            async with self._one_turn:
                pass  # it has failed with its answer, and is not cut off
        if self._leaving is not None:
            await self._leaving.gone()

    async def _take(self, envelope: Envelope, delivery: DeliveryContext, answer: Answer) -> DeliveryResult:
        calls = envelope.budget.call_budget_remaining
        if calls == 0:
            return _failed("the message has no call left for the agent to work with", "call_budget")
        clock = self._context.clock
        ends_at = clock.monotonic() + self._turn_secs
        max_turns = min(calls, self._config.max_turns or calls)
        try:
            outcome, note = await self._within_time(envelope, delivery, answer, max_turns)
        except StorageError as error:
            return _failed(f"the session could not be written down: {error.message}", error.code)
        self._on_outcome(self._name, outcome)
        if outcome.error is not None:
            return DeliveryResult(ok=False, error=outcome.error, code=outcome.code, retry_after=outcome.retry_after)
        detail = "; ".join([*note, f"session {self._known_id}, model turns: {outcome.turns}"])
        if envelope.reply_to is None:
            return DeliveryResult(ok=True, detail=f"{detail}; nobody asked for the answer: {beginning(outcome.text)}")
        patience = min(max(ends_at - clock.monotonic(), _LEAST_PATIENCE_SECS), delivery.remaining)
        return await self._publish(answer, outcome.text, patience, detail)

    async def _publish(self, answer: Answer, text: str, patience: float, detail: str) -> DeliveryResult:
        """Have the answer taken."""
        self._publishing = answer
        try:
            await answer.publish(text, patience)
        except AnswerLost as lost:
            where = f"{lost}; it is in the transcript of session {self._known_id}"
            return _failed(where if lost.kept else f"{where}, and begins: {beginning(text)}", lost.code)
        finally:
            self._publishing = None
        return DeliveryResult(ok=True, detail=detail)

    async def _within_time(
        self, envelope: Envelope, delivery: DeliveryContext, answer: Answer, max_turns: int
    ) -> tuple[Outcome, list[str]]:
        """Run a turn for as long as it may take."""
        remaining = delivery.remaining
        if remaining <= 0:
            return _expired(), []
        limit = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        seconds = min(self._turn_secs, remaining)
        timer = call_later(self._context.clock, seconds, lambda: limit.reschedule(loop.time()))
        try:
            async with limit:
                return await self._run(envelope, answer, max_turns)
        except TimeoutError:
            self._let_go(interrupt=True)
            if not limit.expired():
                raise
            if self._leaving is not None:
                await self._leaving.gone()
            if remaining <= self._turn_secs:
                return _expired(), []
            return Outcome(error=f"no result within {self._turn_secs:g} s (turnTimeoutSecs)", code="timeout"), []
        except BaseException:
            self._let_go(interrupt=True)
            raise
        finally:
            timer.cancel()

    async def _run(self, envelope: Envelope, answer: Answer, max_turns: int) -> tuple[Outcome, list[str]]:
        """Ask the session that there is, or a new one if it is gone."""
        prompt = write_prompt(envelope)
        note: list[str] = []
        while True:
            try:
                session = await self._find_session(max_turns)
                outcome = await self._ask(session, prompt, answer)
            except SessionEnded as end:
                outcome = end.outcome
                self._let_go()
            if self._closed and outcome.error is not None:
                await _be_cut_off()
            if outcome.code != SESSION_GONE or note:
                return outcome, note
            note.append("the session was gone, so a new one was begun")
            self._let_go()
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
        raise AssertionError("a session that ends says so")

    async def _find_session(self, max_turns: int) -> Session:
        """Return the session that runs, or open one, in the conversation that there was.

        Raises:
            SessionEnded: if it does not open.
        """
        session = self._session
        if session is not None and session.ended is None and session.max_turns == max_turns:
            return session
        resume = session.id if session is not None else None
        self._let_go()
        if (last := self._sessions.get(self._name)) is not None:
            last.close()
            await last.gone()  # with what it had to save, which the next one resumes
        if not await asyncio.to_thread(os.access, self._config.cwd, os.R_OK | os.X_OK):
            why = f"the directory {self._config.cwd} is not there, or may not be entered: create it, or correct cwd"
            raise SessionEnded(Outcome(error=why, code="no_directory"))
        if resume is None and self._config.resume_sessions:
            resume = self._known_id = await asyncio.to_thread(self._memory.load)
        if self._closed:
            await _be_cut_off()
        options = make_options(self._config, self._program, max_turns=max_turns, resume=resume)
        session = self._session = self._sessions[self._name] = Session(options, self._tasks, f"{self._name}'s session")
        await session.open()
        return session

    async def _remember(self, session_id: str) -> None:
        if session_id != self._known_id:
            await asyncio.to_thread(self._memory.save, session_id)
            self._known_id = session_id

    def _let_go(self, *, interrupt: bool = False) -> None:
        """Have the program closed in the background, if there is one."""
        if self._session is not None:
            self._leaving, self._session = self._session, None
            self._leaving.close(interrupt=interrupt)

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _wait_idle(self) -> None:
        if self._session is not None and not self._closed:
            self._idle = call_later(self._context.clock, self._idle_secs, self._let_go)


async def _be_cut_off() -> None:
    """Wait for the bus to end this delivery, which it does when the adapter has stopped."""
    await asyncio.sleep(_CUT_OFF_SECS)


def _failed(error: str, code: str) -> DeliveryResult:
    return DeliveryResult(ok=False, error=error, code=code)


def _expired() -> Outcome:
    return Outcome(error="the message expired before there was a result", code="expired")

"""One running program: opened, asked one prompt at a time, and closed with all its processes.

1. Its output is read all the time, even between turns, when it is dropped: an unread pipe would block the program, and
   its end would not be noticed at once.
2. Opening and closing run in separate tasks: they complete even if their callers are cancelled.
3. Closing: an interrupt if a turn is running, then the end of its input; the launcher does the rest (its rules 3
   and 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    SystemMessage,
    UserMessage,
)

from relay_core.tasks import Tasks
from relay_supervisor.adapters.claude_code.turn import Outcome, explain_end

INTERRUPT_SECS = 1.0
"""For the program to end its turn after an interrupt, before it is terminated."""


class SessionEnded(Exception):
    """The program did not start, or has ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


class Session:
    """A program that runs for one agent."""

    def __init__(self, options: ClaudeAgentOptions, tasks: Tasks, name: str) -> None:
        self.max_turns = options.max_turns
        self.id: str | None = options.resume
        """The session's id, once known."""
        self.ended: SessionEnded | None = None
        self.busy = False
        """True while a turn is running: between our turns, one that the program started itself."""
        self._client = ClaudeSDKClient(options)
        self._tasks = tasks
        self._name = name
        self._opening: asyncio.Task[Exception | None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._turn: asyncio.Queue[Any] | None = None
        """Unread messages of the current turn; None is the end."""

    async def open(self) -> None:
        """Start the program; raises SessionEnded if it does not start, or is closed meanwhile."""
        self._opening = self._tasks.start(self._connect(), name=f"open {self._name}")
        if self._opening is None:
            raise SessionEnded(explain_end(None))
        await asyncio.wait({self._opening})
        if self._opening.cancelled():
            raise SessionEnded(explain_end(None))
        if (error := self._opening.result()) is not None:
            raise SessionEnded(explain_end(error))
        self._tasks.start(self._read(), name=f"read {self._name}")

    async def ask(self, prompt: str, on_id: Callable[[str], Awaitable[None]]) -> AsyncIterator[Any]:
        """Start a turn and yield the program's messages; `on_id` is awaited with the session's id.

        Raises:
            SessionEnded: if the program ends.
        """
        turn = self._turn = asyncio.Queue()
        try:
            if self.ended is None:
                try:
                    await self._client.query(prompt)
                except Exception as error:
                    # The reader knows the cause better than a broken pipe does.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(INTERRUPT_SECS):
                            while await turn.get() is not None:
                                pass
                    raise self.ended or SessionEnded(explain_end(error)) from None
            while self.ended is None or not turn.empty():
                message = await turn.get()
                if message is None:
                    break
                if isinstance(message, SystemMessage) and message.subtype == "init":
                    session_id = message.data.get("session_id")
                    if isinstance(session_id, str) and session_id:
                        self.id = session_id
                        await on_id(session_id)
                yield message
            raise self.ended or SessionEnded(explain_end(None))
        finally:
            self._turn = None

    def close(self, *, interrupt: bool = False) -> None:
        """Start closing the program and all its processes; closing again does nothing."""
        if self._closing is None:
            self._closing = self._tasks.start(self._close(interrupt), name=f"close {self._name}")

    async def closed(self) -> None:
        """Wait until a closing session's processes have exited."""
        if self._closing is not None:
            await asyncio.wait({self._closing})

    async def _connect(self) -> Exception | None:
        try:
            await self._client.connect()
        except Exception as error:
            return error
        return None

    async def _read(self) -> None:
        why: Exception | None = None
        try:
            async for message in self._client.receive_messages():
                match message:
                    case ResultMessage():
                        self.busy = False
                    case AssistantMessage(parent_tool_use_id=None) | UserMessage(parent_tool_use_id=None):
                        self.busy = True
                if self._turn is not None:
                    self._turn.put_nowait(message)
        except Exception as error:
            why = error
        finally:
            self.ended = SessionEnded(explain_end(why))
            if self._turn is not None:
                self._turn.put_nowait(None)

    async def _close(self, interrupt: bool) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.wait({self._opening})
        if interrupt and self.ended is None:
            with suppress(Exception):
                async with asyncio.timeout(INTERRUPT_SECS):
                    await self._client.interrupt()
        with suppress(Exception):
            await self._client.disconnect()

"""Telegram's rate limits, kept by waiting: a call per second in a chat, 20 a minute in a group, 30 a second overall.

1. No window of that length has more calls, wherever it starts. (A token bucket would allow twice as many in its first
   minute.)
2. A place is taken when the call is sent, never ahead of it: first the chat's windows must have room, then the overall
   one. So a waiting chat takes nothing from the others, and no call waits without need.
3. Calls of a chat are served in order; so are chats that wait for the overall window.
4. Messages, edits and typing count alike (deleting a message does not). Optional calls use `try_acquire`, which never
   goes ahead of a waiting call.
5. A 429 holds the chat for as long as Telegram says: no call is sent before, including those that were waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from relay_core.clock import Clock, sleep
from relay_supervisor.adapters.platform import clock_timeout

PER_CHAT = (1, 1.0)
PER_GROUP = (20, 60.0)
OVERALL = (30, 1.0)
_CHATS_KEPT = 1000
_BEHIND_SECS = 1.0
"""The least time to wait while other calls are waiting."""
_NO_TIME_SECS = 1e-6
"""Less than this is floating-point error."""


class Window:
    """A maximum number of calls in any period of so many seconds."""

    __slots__ = ("_calls", "_clock", "_seconds")

    def __init__(self, clock: Clock, calls: int, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._calls: deque[float] = deque(maxlen=calls)
        """Times of the latest calls."""

    def wait(self) -> float:
        """Return the seconds until there is room."""
        if len(self._calls) < (self._calls.maxlen or 0):
            return 0.0
        left = self._calls[0] + self._seconds - self._clock.monotonic()
        return left if left > _NO_TIME_SECS else 0.0

    def take(self) -> None:
        """Use a place now."""
        self._calls.append(self._clock.monotonic())


class _Chat:
    """The windows of one chat, and the queue for them."""

    __slots__ = ("_clock", "_held_until", "_windows", "queue")

    def __init__(self, clock: Clock, chat: int) -> None:
        self.queue = asyncio.Lock()
        self._clock = clock
        self._held_until = 0.0
        self._windows = [Window(clock, *PER_CHAT)]
        if chat < 0:
            self._windows.append(Window(clock, *PER_GROUP))

    def wait(self) -> float:
        held = self._held_until - self._clock.monotonic()
        return max(held if held > _NO_TIME_SECS else 0.0, *(window.wait() for window in self._windows))

    def take(self) -> None:
        for window in self._windows:
            window.take()

    def hold(self, seconds: float) -> None:
        self._held_until = max(self._held_until, self._clock.monotonic() + seconds)

    @property
    def is_idle(self) -> bool:
        return not self.queue.locked() and self.wait() == 0.0


class RateLimits:
    """The limits of one bot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._overall = Window(clock, *OVERALL)
        self._queue = asyncio.Lock()
        """The queue for the overall window, of calls whose chats have room."""
        self._chats: OrderedDict[int, _Chat] = OrderedDict()

    def wait(self, chat: int) -> float:
        """Return an estimate of the seconds until a call for a chat may be sent."""
        state = self._of(chat)
        behind = _BEHIND_SECS if state.queue.locked() or self._queue.locked() else 0.0
        return max(state.wait(), self._overall.wait(), behind)

    def try_acquire(self, chat: int) -> bool:
        """Take a place for a call that is sent now, unless there is none or other calls are waiting for it."""
        if self.wait(chat) > 0:
            return False
        self._of(chat).take()
        self._overall.take()
        return True

    async def acquire(self, chat: int, patience: float) -> bool:
        """Wait for a place and take it; return False if there was none within so many seconds."""
        try:
            async with clock_timeout(self._clock, patience):
                await self._wait_turn(self._of(chat))
        except TimeoutError:
            return False
        return True

    def hold(self, chat: int, seconds: float) -> None:
        """Send nothing to a chat for as long as Telegram asks."""
        self._of(chat).hold(seconds)

    async def _wait_turn(self, chat: _Chat) -> None:
        async with chat.queue:
            while True:
                await self._until_free(chat.wait)
                async with self._queue:
                    await self._until_free(self._overall.wait)
                    if chat.wait() == 0.0:  # it has not been held meanwhile
                        chat.take()
                        self._overall.take()
                        return

    async def _until_free(self, wait: Callable[[], float]) -> None:
        while (seconds := wait()) > 0:
            await sleep(self._clock, seconds)

    def _of(self, chat: int) -> _Chat:
        found = self._chats.get(chat)
        if found is None:
            found = self._chats[chat] = _Chat(self._clock, chat)
            if len(self._chats) > _CHATS_KEPT:
                idle = next((id for id, state in self._chats.items() if id != chat and state.is_idle), None)
                if idle is not None:  # chats with waiting calls or a hold are kept
                    del self._chats[idle]
        self._chats.move_to_end(chat)
        return found

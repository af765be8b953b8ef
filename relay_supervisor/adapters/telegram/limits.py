"""Telegram's limits, kept by waiting: 1 call per second in a chat, 20 per minute in a group, 30 per second over all.

1. No window of that length, wherever it begins, has more calls. (A token bucket would let twice as many through in
   its first minute.)
2. A place is taken at the moment the call goes out, never ahead of it: first the chat's own windows must have room,
   then the one over all. So a chat that waits takes nothing away from the others, and nobody waits without need.
3. Those who wait in a chat are served in the order in which they asked; so are chats that wait for the window over
   all.
4. Messages, edits and typing count alike (taking a message away does not). Whoever can do without uses `try_take`,
   and comes before nobody who waits.
5. A 429 holds the chat for as long as Telegram says: nobody's call goes out before, also of those who waited already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from relay_core.clock import Clock, call_later, sleep

PER_CHAT = (1, 1.0)
PER_GROUP = (20, 60.0)
OVERALL = (30, 1.0)
_CHATS_KEPT = 1000
_BEHIND_SECS = 1.0
"""How long it takes at least while somebody else waits already."""
_NO_TIME_SECS = 1e-6
"""Less than this is what floating-point numbers leave over."""


class Window:
    """So many calls in any so many seconds."""

    __slots__ = ("_calls", "_clock", "_seconds")

    def __init__(self, clock: Clock, calls: int, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._calls: deque[float] = deque(maxlen=calls)
        """When the latest calls went out."""

    def wait(self) -> float:
        """Return the seconds until there is room."""
        if len(self._calls) < (self._calls.maxlen or 0):
            return 0.0
        left = self._calls[0] + self._seconds - self._clock.monotonic()
        return left if left > _NO_TIME_SECS else 0.0

    def take(self) -> None:
        """Use one place, now."""
        self._calls.append(self._clock.monotonic())


class _Chat:
    """The windows of one chat, and those who wait for them."""

    __slots__ = ("_clock", "_held_until", "_windows", "line")

    def __init__(self, clock: Clock, chat: int) -> None:
        self.line = asyncio.Lock()
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
        return not self.line.locked() and self.wait() == 0.0


class RateLimits:
    """The limits of one bot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._overall = Window(clock, *OVERALL)
        self._line = asyncio.Lock()
        """Those whose chat has room, and who wait for the window over all."""
        self._chats: OrderedDict[int, _Chat] = OrderedDict()

    def wait(self, chat: int) -> float:
        """Return the seconds until a call for a chat may go out, as far as it can be known."""
        one = self._of(chat)
        behind = _BEHIND_SECS if one.line.locked() or self._line.locked() else 0.0
        return max(one.wait(), self._overall.wait(), behind)

    def try_acquire(self, chat: int) -> bool:
        """Take a place for a call that goes out now, unless there is none or somebody waits for it."""
        if self.wait(chat) > 0:
            return False
        self._of(chat).take()
        self._overall.take()
        return True

    async def acquire(self, chat: int, patience: float | None = None) -> bool:
        """Wait for a place and take it; False if there was none within so many seconds."""
        limit = asyncio.timeout(None)
        loop = asyncio.get_running_loop()
        timer = None
        if patience is not None:
            timer = call_later(self._clock, patience, lambda: limit.reschedule(loop.time()))
        try:
            async with limit:
                await self._turn(self._of(chat))
            return True
        except TimeoutError:
            return False
        finally:
            if timer is not None:
                timer.cancel()

    def hold(self, chat: int, seconds: float) -> None:
        """Keep a chat quiet for as long as Telegram asks for."""
        self._of(chat).hold(seconds)

    async def _turn(self, chat: _Chat) -> None:
        async with chat.line:
            while True:
                await self._until_free(chat.wait)
                async with self._line:
                    await self._until_free(self._overall.wait)
                    if chat.wait() == 0.0:  # no hold has come meanwhile
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
                idle = next((id for id, one in self._chats.items() if id != chat and one.is_idle), None)
                if idle is not None:  # whoever waits or is held is not forgotten
                    del self._chats[idle]
        self._chats.move_to_end(chat)
        return found

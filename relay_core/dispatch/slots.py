"""Slots: how many messages a consumer may have in flight over all mailboxes, which take turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Slots:
    """A number of slots, and the mailboxes that wait for one, the longest waiting first."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, number: int) -> None:
        self._free = number
        """While it is positive, nothing waits."""
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, granted: Callable[[], None]) -> bool:
        """Take a slot and return True; if none is free, return False and call `granted` with one that is taken."""
        if self._free > 0:
            self._free -= 1
            return True
        self._waiting.append(granted)
        return False

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def grant() -> None:
            if granted.cancelled():
                self.release()
            else:
                granted.set_result(None)

        if self.take(grant):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Return a slot: it goes to the mailbox that has waited longest."""
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1

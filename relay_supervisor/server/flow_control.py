"""How connections share the event loop, so that a client with cheap requests does not wait for costly ones.

1. A turn of a connection ends after `TURN_SECS`, however many requests are left. Only the time they took counts.
2. A connection whose costly requests (`COSTLY_SECS` each) used more than its share (`TimeDebt`) waits for a turn with
   the others like it; one of them runs per turn of the loop (`FairTurns`). So a cheap request waits for one costly
   turn at most, however many connections send costly ones. Such a turn is short (`LATE_TURN_SECS`: one costly request)
   and is followed by a pause as long as it took: the threads that make publishes durable need the interpreter too.
3. Work that grows with what a client owns is done in slices of `SLICE_SECS` (`TimeSlices`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

TURN_SECS = 0.005
LATE_TURN_SECS = 0.0005
SLICE_SECS = 0.005
COSTLY_SECS = 0.0005
_SHARE = 0.2
"""The part of the time that a connection may use."""
_CREDIT_SECS = 0.004
"""How far a connection may exceed its share before it must wait."""


class TimeDebt:
    """How far a connection has exceeded its share of the loop."""

    __slots__ = ("_at", "_owed")

    def __init__(self) -> None:
        self._at = perf_counter()
        self._owed = 0.0

    @property
    def is_any(self) -> bool:
        """Return True if it had used more than its share when that was last computed."""
        return self._owed > 0.0

    @property
    def is_due(self) -> bool:
        """Return True if it has used more than its share."""
        now = perf_counter()
        self._owed = max(self._owed - (now - self._at) * _SHARE, 0.0)
        self._at = now
        return self._owed > _CREDIT_SECS

    def add(self, secs: float) -> None:
        """Add time that was used; the debt is capped, so that a long request is paid off within seconds."""
        self._owed = min(self._owed + secs, 1.0)


class FairTurns:
    """Run the turns of connections that have exceeded their share, one per turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None
        self._pause_until = 0.0

    def wait(self, turn: Callable[[], None]) -> QueuedTurn:
        """Call `turn` when it is first in the queue."""
        self._waiting.append(turn)
        self._schedule()
        return QueuedTurn(self, turn)

    def leave(self, turn: Callable[[], None]) -> None:
        """Remove a turn from the queue."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    def _run(self) -> None:
        self._next = None
        if self._waiting:
            started = perf_counter()
            self._waiting.popleft()()
            now = perf_counter()
            self._pause_until = now + (now - started)
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and self._next is None:
            pause = self._pause_until - perf_counter()
            self._next = asyncio.get_running_loop().call_later(max(pause, 0.0), self._run)


class QueuedTurn:
    """A turn that waits in the queue."""

    __slots__ = ("_turn", "_turns")

    def __init__(self, turns: FairTurns, turn: Callable[[], None]) -> None:
        self._turns = turns
        self._turn = turn

    def cancel(self) -> None:
        """Leave the queue."""
        self._turns.leave(self._turn)


class TimeSlices:
    """Interrupt a long piece of work now and then."""

    def __init__(self) -> None:
        self._started = perf_counter()

    async def pause(self) -> None:
        """Yield to the event loop if the slice is used up."""
        if perf_counter() - self._started >= SLICE_SECS:
            await asyncio.sleep(0)
            self._started = perf_counter()

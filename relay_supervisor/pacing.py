"""How connections share the event loop: which methods wait for each other, and what a costly one must leave to others.

1. A turn of a connection ends after `TURN_SECS`, however many requests are left. What counts is the time they took.
2. A connection whose costly requests (`COSTLY_SECS` each) have used more than its share (`Debt`) is served with the
   others like it, one of them in a turn of the loop (`Turns`), so that a client that asks for little waits for one
   costly turn at most, however many connections ask for much. Such a turn is short (`LATE_TURN_SECS`: one costly
   request), and as long as it took, none follows: the threads that make publishes last need the interpreter too.
3. Work that grows with what a client owns is done in slices of `SLICE_SECS` (`Slices`).
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
"""The part of the time that a connection may use without falling behind."""
_CREDIT_SECS = 0.004
"""What it may use at once before that counts."""


class Debt:
    """How far a connection is ahead of its share of the loop."""

    __slots__ = ("_at", "_owed")

    def __init__(self) -> None:
        self._at = perf_counter()
        self._owed = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it has used more than its share."""
        now = perf_counter()
        self._owed = max(self._owed - (now - self._at) * _SHARE, 0.0)
        self._at = now
        return self._owed > _CREDIT_SECS

    def add(self, secs: float) -> None:
        """Count time that was used; a long request is not held against it for ever."""
        self._owed = min(self._owed + secs, 1.0)


class Turns:
    """Let connections that are ahead of their share have one turn after the other, one in a turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._next: asyncio.Handle | None = None
        self._rests_until = 0.0

    def wait(self, turn: Callable[[], None]) -> Ticket:
        """Call back when it is this one's turn."""
        self._waiting.append(turn)
        self._go_on()
        return Ticket(self, turn)

    def leave(self, turn: Callable[[], None]) -> None:
        """Forget one that waits."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    def _run(self) -> None:
        self._next = None
        if self._waiting:
            begun = perf_counter()
            self._waiting.popleft()()
            now = perf_counter()
            self._rests_until = now + (now - begun)
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting and self._next is None:
            rest = self._rests_until - perf_counter()
            self._next = asyncio.get_running_loop().call_later(max(rest, 0.0), self._run)


class Ticket:
    """A place among those that wait for their turn."""

    __slots__ = ("_turn", "_turns")

    def __init__(self, turns: Turns, turn: Callable[[], None]) -> None:
        self._turns = turns
        self._turn = turn

    def cancel(self) -> None:
        """Give it up."""
        self._turns.leave(self._turn)


class Slices:
    """Stop now and then in a long piece of work."""

    def __init__(self) -> None:
        self._begun = perf_counter()

    async def rest(self) -> None:
        """Let others have their turn if a slice is over."""
        if perf_counter() - self._begun >= SLICE_SECS:
            await asyncio.sleep(0)
            self._begun = perf_counter()


LARGE = frozenset(
    {
        "inbox.peek",
        "inbox.claim",
        "deadletters.list",
        "deadletters.summaries",
        "deadletters.get",
        "deadletters.items",
        "deadletters.export",
        "traces.search",
        "traces.get",
        "traces.conversation",
        "reports.get",
    }
)
"""Methods whose answer may be megabytes, and does not keep others waiting for long."""
PATIENT = frozenset({"inbox.wait"})
"""Methods that wait for something that may never come: whoever hangs up meanwhile does not want the answer."""
ORDERED = frozenset(
    {
        "subscribe",
        "unsubscribe",
        "inbox.peek",
        "inbox.claim",
        "inbox.complete",
        "inbox.fail",
        "endpoints.register",
        "endpoints.unregister",
        "replies.open",
        "access.add",
        "access.remove",
        "tokens.add",
        "tokens.remove",
        "agents.add",
        "agents.remove",
    }
)
"""Methods that are quick, and that what is asked next may count on."""

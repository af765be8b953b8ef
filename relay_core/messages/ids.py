"""Message ids: strictly increasing ULIDs.

1. Ids of one factory increase strictly as text.
2. The time part is never behind an earlier id, also after a restart if it is seeded with the newest id on disk.

Within a millisecond, and while the clock is behind the newest id, the last 20 bits count upwards; a new millisecond (or
a full count) draws new randomness, so that two factories do not produce the same ids. python-ulid's generator does none
of this, follows the wall clock backwards, is not thread-safe and costs 9 µs per id: only its alphabet and its parser
are used.
"""

from __future__ import annotations

import re
import threading
from secrets import token_bytes

from ulid import ULID
from ulid.base32 import ENCODE

from relay_core.clock import Clock

ULID_PATTERN = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")

_PAIRS = [a + b for a in ENCODE for b in ENCODE]
_COUNT_LIMIT = 1 << 20
_LAST_MS = (1 << 48) - 1
_FARTHEST_AHEAD_MS = 2 * 86_400_000


def is_ulid(text: str) -> bool:
    """Return True if the text is a canonical ULID."""
    return ULID_PATTERN.fullmatch(text) is not None


def ulid_ms(ulid: str) -> int:
    """Return the millisecond in which a ULID was created."""
    return ULID.from_str(ulid).milliseconds


def is_of_clock(text: str, clock: Clock) -> bool:
    """Return True if the text is a ULID that is not days ahead of a clock."""
    return is_ulid(text) and ulid_ms(text) < clock.now_ms() + _FARTHEST_AHEAD_MS


def first_ulid(ms: int) -> str:
    """Return a text that sorts before every ULID of a millisecond or later, and after all earlier ones."""
    return _encode(min(max(ms, 0), _LAST_MS), 5)


class UlidFactory:
    """Make strictly increasing ULIDs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ms = 0
        self._prefix = ""
        self._entropy = b""
        self._count = 0

    def __call__(self, now: int | None = None) -> str:
        """Return the next id; `now` is wall time in milliseconds, if the caller has read it already."""
        if now is None:
            now = self._clock.now_ms()
        with self._lock:
            self._count += 1
            if now > self._ms or self._count >= _COUNT_LIMIT:
                self._start(max(now, self._ms if self._count < _COUNT_LIMIT else self._ms + 1))
            count = self._count
            return self._prefix + _PAIRS[count >> 10] + _PAIRS[count & 1023]

    def seed(self, newest: str) -> None:
        """Return only ids above `newest` from now on, unless it is days ahead: no clock is that wrong."""
        with self._lock:
            ms = ulid_ms(newest)
            if self._ms <= ms < self._clock.now_ms() + _FARTHEST_AHEAD_MS:
                self._start(ms + 1)

    def _start(self, ms: int) -> None:
        if not self._entropy:
            self._entropy = token_bytes(4000)  # a system call that releases the GIL: once per 500 milliseconds
        self._ms = ms
        self._prefix = _encode(ms, 5) + _encode(int.from_bytes(self._entropy[-8:], "big"), 6)
        self._entropy = self._entropy[:-8]
        self._count = 0


def _encode(number: int, pairs: int) -> str:
    """Return the last `pairs` × 10 bits of a number in Crockford's base 32."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(10 * (pairs - 1), -1, -10)])

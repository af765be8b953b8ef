"""What the dashboard remembers of the last minutes, so that a number can be said to grow or to fall.

The bus tells what is; how it changes is seen from here, once a second, for as long as the dashboard has been open.
Only what is not empty is remembered, so ten thousand quiet mailboxes cost nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from relay_core.messages.dead_letter import count_dead

if TYPE_CHECKING:
    from relay_core.protocol.live_state import LiveState

KEPT_SECS = 300
_DRAIN_SECS = 30.0


class TimeSeries:
    """Counts by key, second by second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=KEPT_SECS)

    def note(self, at: float, counts: dict[str, int]) -> None:
        """Remember the counts of an instant, at most one a second."""
        if self._samples and at < self._samples[-1][0]:
            self._samples.clear()  # the supervisor's clock was set back
        if not self._samples or at - self._samples[-1][0] >= 1.0:
            self._samples.append((at, counts))

    def change(self, key: str, now: int, secs: float) -> tuple[int, float]:
        """Return by how much a count has changed over the last seconds, and over how many it was watched."""
        if not self._samples:
            return 0, 0.0
        newest = self._samples[-1][0]
        first = self._samples[-1]
        for sample in reversed(self._samples):
            if newest - sample[0] > secs:
                break
            first = sample
        return now - first[1].get(key, 0), newest - first[0]

    def series(self, key: str, count: int) -> list[int]:
        """Return the newest samples of a count, oldest first."""
        return [counts.get(key, 0) for _, counts in list(self._samples)[-count:]]


class History:
    """How mailboxes and dead letters have changed."""

    def __init__(self) -> None:
        self.depth = TimeSeries()
        """By the mailbox's hash."""
        self.dead = TimeSeries()
        """By ``code/hash``, and all together under an empty key."""

    def note(self, state: LiveState) -> None:
        """Remember how things are."""
        at = state.at / 1000
        self.depth.note(at, {key: box.depth for key, box in state.mailboxes.items() if box.depth})
        dead = {key: group.count for key, group in state.dead_letters.items()}
        self.dead.note(at, {**dead, "": count_dead(state.dead_letters.values())})

    def drained_in(self, key: str, depth: int) -> float | None:
        """Return in how many seconds a mailbox is empty at the pace of the last half minute, if it shrinks."""
        change, secs = self.depth.change(key, depth, _DRAIN_SECS)
        return depth * secs / -change if change < 0 and depth else None

"""The last minutes of some counts, sampled once a second while the dashboard is open, to show trends.

The bus reports current values only. Zeros are not stored, so ten thousand idle mailboxes cost nothing.
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
    """Counts by key, sampled once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=KEPT_SECS)

    def note(self, at: float, counts: dict[str, int]) -> None:
        """Add a sample, unless the last one is less than a second old."""
        if self._samples and at < self._samples[-1][0]:
            self._samples.clear()  # the supervisor's clock was set back
        if not self._samples or at - self._samples[-1][0] >= 1.0:
            self._samples.append((at, counts))

    def change(self, key: str, now: int, secs: float) -> tuple[int, float]:
        """Return the change of a count over the last `secs` seconds, and the seconds that the samples cover."""
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
    """The recent counts of mailboxes and dead letters."""

    def __init__(self) -> None:
        self.depth = TimeSeries()
        """By the mailbox's hash."""
        self.dead = TimeSeries()
        """By ``code/hash``; the total has an empty key."""

    def note(self, state: LiveState) -> None:
        """Add a sample of the state."""
        at = state.at / 1000
        self.depth.note(at, {key: box.depth for key, box in state.mailboxes.items() if box.depth})
        dead = {key: group.count for key, group in state.dead_letters.items()}
        self.dead.note(at, {**dead, "": count_dead(state.dead_letters.values())})

    def drained_in(self, key: str, depth: int) -> float | None:
        """Return the seconds until a mailbox is empty at the rate of the last half minute; None if it grows."""
        change, secs = self.depth.change(key, depth, _DRAIN_SECS)
        return depth * secs / -change if change < 0 and depth else None

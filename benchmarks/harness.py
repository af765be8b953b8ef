"""How things are measured here, and why so.

1. **Interleaved.** The speed of a machine like ours varies 2 × within seconds. So a round measures the base, the
   subject and the base again, and sets the subject against the mean of its two neighbours. The value is the median
   of the rounds' ratios; all of them, and the lowest and the highest as the spread, are printed beside it.
2. **Fresh directories, and nothing deleted before the end.** Our root file system is ext4 without a journal. There,
   creating files is 10 × slower for minutes after many were deleted nearby: the allocator walks over recently deleted
   inodes. So the cases that complete messages come last, and a run's directory is marked as a top directory (chattr
   +T): ext4 then chooses a block group for each measurement by its name, which is never used twice. (Measured minutes
   after an earlier run was deleted: 50 to 100 µs a file so, 1,200 to 1,900 µs without.)
3. **Nothing inherited.** Before a measurement garbage is collected; before one with fsync the file system is synced,
   since on a journaling one the base would otherwise pay for what the bus had left to write back.
4. **Warm.** Every measurement of publishing makes a few messages first that do not count.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from statistics import mean, median
from typing import Any, Literal, TypeVar

from relay_core.journal.journal import sync_file_system

T = TypeVar("T")
Measure = Callable[[], float]
"""Return seconds per message, or per start."""
Result = dict[str, Any]
"""One line of output."""


@dataclass(slots=True)
class Comparison:
    """The rounds of a subject against its base, in seconds."""

    base: list[float] = field(default_factory=list)
    subject: list[float] = field(default_factory=list)

    @property
    def cost(self) -> list[float]:
        """Return how many times as long the subject took, by round."""
        return [subject / base for subject, base in zip(self.subject, self.base, strict=True)]

    @property
    def speed(self) -> list[float]:
        """Return how many times as fast the subject was, by round."""
        return [1 / cost for cost in self.cost]

    def medians(self, base: str, scale: float, unit: str) -> dict[str, Any]:
        """Return the times themselves, named for the output."""
        return {f"{base}_{unit}": median(self.base) * scale, f"relay_{unit}": median(self.subject) * scale}


@dataclass(frozen=True, slots=True)
class Goal:
    """What a metric should reach."""

    bench: str
    metric: str
    unit: str
    at: Literal["least", "most"]
    limit: float

    def result(self, rounds: list[float], **details: Any) -> Result:
        """Sum the rounds up."""
        value = median(rounds)
        met = value >= self.limit if self.at == "least" else value <= self.limit
        line = {"bench": self.bench, "metric": self.metric, "value": value, "unit": self.unit}
        line |= {"goal": self.limit, "at": self.at, "met": met, **details}
        line |= {"spread": [min(rounds), max(rounds)], "rounds": rounds}
        return {key: _short(value) for key, value in line.items()}


@dataclass(slots=True)
class Bench:
    """One run: where it works, and how much it does."""

    root: Path
    rounds: int
    messages: int
    stored: int
    """Messages that are there already, where a case begins with some."""
    endpoints: int
    """Endpoints, and as many subscriptions, where a case begins with many."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None

    def fresh(self) -> Path:
        """Return a directory that nothing has been in, for its owner alone."""
        path = self.root / token_hex(8)
        path.mkdir(mode=0o700)
        return path

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a loop of its own."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(work)

    def compare(self, base: Measure, subject: Measure, *, sync: bool = False) -> Comparison:
        """Measure base, subject and base again in every round."""
        rounds = Comparison()
        for _ in range(self.rounds):
            times = []
            for measure in (base, subject, base):
                if sync:
                    sync_file_system(self.root)
                gc.collect()
                times.append(measure())
            rounds.base.append(mean(times[::2]))
            rounds.subject.append(times[1])
        return rounds


def positive(text: str) -> int:
    """Read a count from the command line.

    Raises:
        ValueError: if it is none.
    """
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value

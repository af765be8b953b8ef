"""How measurements are taken, and why.

1. **Interleaved.** The speed of a virtual machine varies 2 × within seconds. So a round measures the base, the subject
   and the base again, and compares the subject with the mean of its two neighbours. The value is the median of the
   rounds' ratios; all ratios, and the lowest and highest as the spread, are printed with it.
2. **Fresh directories, and nothing deleted before the end.** On ext4 without a journal, creating files is 10 × slower
   for minutes after many were deleted nearby, because the allocator skips recently deleted inodes. So the cases that
   complete messages run last, and a run's directory is marked as a top directory (chattr +T): ext4 then chooses a block
   group for each measurement by its name, which is never reused. (Measured minutes after an earlier run was deleted: 50
   to 100 µs per file with it, 1,200 to 1,900 µs without.)
3. **Nothing inherited.** Garbage is collected before each measurement. Before one with fsync the file system is synced,
   because on a journaling one the base would otherwise pay for the bus's pending writes.
4. **Warm.** Every measurement of publishing first publishes a few messages that do not count.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from statistics import mean, median, quantiles
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
    """The target of a metric."""

    bench: str
    metric: str
    unit: str
    at: Literal["least", "most"]
    limit: float

    def result(self, rounds: list[float], **details: Any) -> Result:
        """Return the result line of the rounds."""
        value = median(rounds)
        met = value >= self.limit if self.at == "least" else value <= self.limit
        line = {"bench": self.bench, "metric": self.metric, "value": value, "unit": self.unit}
        line |= {"goal": self.limit, "at": self.at, "met": met, **details}
        line |= {"spread": [min(rounds), max(rounds)], "rounds": rounds}
        return {key: rounded(value) for key, value in line.items()}


@dataclass(slots=True)
class Bench:
    """One run: its directory and its sizes."""

    root: Path
    rounds: int
    messages: int
    stored: int
    """Messages stored before a case begins, where it needs any."""
    endpoints: int
    """Endpoints, and as many subscriptions, where a case needs many."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None

    def fresh(self) -> Path:
        """Return a new private directory."""
        path = self.root / token_hex(8)
        path.mkdir(mode=0o700)
        return path

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a new event loop."""
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
    """Parse a positive number from the command line.

    Raises:
        ValueError: if it is not one.
    """
    if (number := int(text)) < 1:
        raise ValueError
    return number


def percentiles(times: list[float]) -> list[float]:
    """Return the 1st to 99th percentile of some times."""
    return quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99


def percentile_results(
    bench: str, rounds: list[list[float]], limits: Mapping[int, float], prefix: str = "p", /, **details: Any
) -> Iterable[Result]:
    """Yield a result for each percentile that has a limit, in milliseconds; each round has its percentiles."""
    for percent, limit in limits.items():
        goal = Goal(bench, f"{prefix}{percent}", "ms", "most", limit)
        yield goal.result([times[percent - 1] for times in rounds], **details)


def rounded(value: Any) -> Any:
    """Return numbers, also those in a list, with four significant digits."""
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def say(text: str) -> None:
    """Print narration to stderr."""
    print(text, file=sys.stderr, flush=True)


Case = Callable[[Bench, str], Iterable[Result]]
Cases = dict[str, Case]
"""Cases by name, in the order of running."""

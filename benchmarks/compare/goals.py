"""The goals of Relay against others, each a ratio within the rounds of this run.

The last one is a case of ``python -m benchmarks``: it compares the library with a bare journal, which stores nothing
that others could read and so is no contestant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from benchmarks.cases.bus import BUS_CASES
from benchmarks.compare import results
from benchmarks.compare.contestant import Durability
from benchmarks.harness import Bench, Goal, Result

HANDLING = "handle_fsync_64"


class Against(NamedTuple):
    """A figure of Relay over the same figure of another contestant."""

    title: str
    durability: Durability
    relay: str
    other: str
    metric: str
    at: Literal["least", "most"]
    limit: float

    def result(self, rounds: dict[tuple[Durability, str, str], list[float]]) -> Result | None:
        """Return the goal's result line, or None if one of the two was not measured."""
        mine, other = (rounds.get((self.durability, name, self.metric)) for name in (self.relay, self.other))
        if not mine or not other:
            return None
        goal = Goal("compare_goals", self.title, "x", self.at, self.limit)
        return goal.result([value / base for value, base in zip(mine, other, strict=True)])


GOALS = (
    Against("power, socket one by one / Redis", "power", "relay-socket", "redis", "publish_1", "least", 1.1),
    Against("power, socket 64 in flight / Redis", "power", "relay-socket", "redis", "publish_64", "least", 1.2),
    Against("power, the same with a bare client / Redis", "power", "relay-socket", "redis", "bare_64", "least", 0.8),
    Against("power, socket fan-out to 10 / JetStream", "power", "relay-socket", "nats", "fan_out_10", "least", 1.2),
    Against("power, socket publish → handler p50 / Redis", "power", "relay-socket", "redis", "latency_p50", "most", 1),
    Against("kill, socket 64 in flight / JetStream", "kill", "relay-socket", "nats", "publish_64", "least", 1),
    Against("kill, library one by one / floor", "kill", "relay", "floor", "publish_1", "least", 1.5),
)


def goals(found: Iterable[results.Result], bench: Bench | None) -> Iterator[Result]:
    """Yield a result line for each goal that this run measured; with a `bench`, also measure the handling."""
    rounds = {(result.durability, result.contestant, result.metric): result.rounds for result in found}
    yield from filter(None, (goal.result(rounds) for goal in GOALS))
    if bench is not None:
        for line in BUS_CASES[HANDLING](bench, "compare_goals"):
            yield line | {"metric": f"power, library {HANDLING}, {line['metric']}"}


def goal_table(lines: Iterable[dict[str, Any]]) -> str:
    """Return the goals as Markdown."""
    rows = [
        f"| {line['metric']} | {line['value']:,g} {line['unit']} | {'≥' if line['at'] == 'least' else '≤'} "
        f"{line['goal']:,g} | {'met' if line['met'] else 'missed'} |"
        for line in lines
    ]
    return "\n".join(["### Goals", "", "| | value | goal | |", "|---|---|---|---|", *rows, ""])

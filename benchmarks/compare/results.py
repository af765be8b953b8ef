"""From rounds to results: medians, spreads, and ratios within a round.

A ratio above 1 is better: faster, sooner or smaller. Servers are compared with Relay through its socket and libraries
with Relay as a library, so both sides have the same number of network hops.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from benchmarks.compare.contestant import Durability
from benchmarks.compare.programme import METRICS, Metric, entry
from benchmarks.compare.runner import Rounds
from benchmarks.harness import rounded

FLOOR = "floor"
RELAY = {"library": "relay", "server": "relay-socket"}


class Result(NamedTuple):
    """A contestant's figure over all rounds."""

    durability: Durability
    contestant: str
    metric: str
    value: float
    spread: tuple[float, float]
    to_floor: float | None
    to_relay: float | None
    rounds: list[float]

    def line(self) -> dict[str, Any]:
        """Return it as one line of output."""
        return {
            "bench": f"compare_{self.durability}",
            "metric": self.metric,
            "value": rounded(self.value),
            "unit": METRICS[self.metric].unit,
            "contestant": self.contestant,
            "ratio_to_floor": rounded(self.to_floor),
            "ratio_to_relay": rounded(self.to_relay),
            "relay": RELAY[entry(self.contestant).kind],
            "spread": rounded(self.spread),
            "rounds": rounded(self.rounds),
        }


def results(durability: Durability, rounds: Rounds) -> list[Result]:
    """Return every figure, by contestant and then by metric."""
    found = []
    for name, figures in rounds.items():
        relay = rounds.get(RELAY[entry(name).kind], {})
        for key, metric in METRICS.items():
            if mine := figures.get(key):
                to_floor = _ratio(metric, mine, rounds.get(FLOOR, {}).get(key))
                to_relay = _ratio(metric, mine, relay.get(key))
                spread = min(mine), max(mine)
                found.append(Result(durability, name, key, median(mine), spread, to_floor, to_relay, mine))
    return found


def _ratio(metric: Metric, mine: list[float], base: list[float] | None) -> float | None:
    if not base:
        return None
    pairs = zip(mine, base, strict=True)
    return median(value / other if metric.better == "more" else other / value for value, other in pairs)

"""From rounds to results: medians, spreads, and ratios within a round.

A ratio says how many times as good: above 1 is faster, sooner or smaller. A server is set against Relay through its
socket and a library against Relay as one, so that a network hop is never set against none.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

from benchmarks.compare.contestant import Durability
from benchmarks.compare.programme import METRICS, Metric, entry
from benchmarks.compare.runner import Rounds

FLOOR = "floor"
RELAY = {"library": "relay", "server": "relay-socket"}


class Result(NamedTuple):
    """A contestant's figure, in all rounds."""

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
            "value": _short(self.value),
            "unit": METRICS[self.metric].unit,
            "contestant": self.contestant,
            "ratio_to_floor": self.to_floor and _short(self.to_floor),
            "ratio_to_relay": self.to_relay and _short(self.to_relay),
            "relay": RELAY[entry(self.contestant).kind],
            "spread": [_short(one) for one in self.spread],
            "rounds": [_short(one) for one in self.rounds],
        }


def results(durability: Durability, rounds: Rounds) -> list[Result]:
    """Return every figure there is, by contestant and then by metric."""
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
    return median(one / other if metric.better == "more" else other / one for one, other in pairs)


def _short(value: float) -> float:
    return float(f"{value:.4g}")

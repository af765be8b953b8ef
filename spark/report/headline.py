"""The day's key numbers, and what each metric is called: a test holds the metrics to those of spark/tables/daily.py.

1. A break-down is read like what it breaks down: ``messagesBySender`` are messages, from a sender.
2. A number that is only known by its parts (a latency) is that of the greatest of them.
3. A number of a day that is not over is compared only where the day's length does not matter (latencies).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relay_core.protocol.report import KeyNumber, Unit
from spark.report.inputs import ReportInputs
from spark.report.wording import short


class Metric(NamedTuple):
    """A number of the day, and how to read it."""

    title: str
    unit: Unit = "count"
    less_is_better: bool | None = True
    """None where neither is better: more and less are both worth a look."""


METRICS = {
    "messages": Metric("Messages", less_is_better=None),
    "bytes": Metric("Published", "bytes", None),
    "refusals": Metric("Refused"),
    "deadLetters": Metric("Dead letters"),
    "standingLetters": Metric("Standing dead letters"),
    "p95TotalUs": Metric("p95 end to end", "us"),
    "p95QueueUs": Metric("p95 of waiting", "us"),
    "p95HandleUs": Metric("p95 of handling", "us"),
    "breakerOpenSecs": Metric("Breakers open", "secs"),
    "breakerOpenings": Metric("Breakers opened"),
    "pressureSecs": Metric("Mailboxes too full", "secs"),
    "adapterFailures": Metric("Failures of adapters"),
    "adapterDownSecs": Metric("Adapters down", "secs"),
    "jobsFailed": Metric("Jobs failed"),
    "loopsStopped": Metric("Loops stopped"),
    "deepestChain": Metric("Most hops of a conversation"),
    "widestFanOut": Metric("Most answers to a message"),
}
HEADLINE = {
    "messages": "Messages",
    "bytes": "Published",
    "refusals": "Refused",
    "deadLetters": "Dead letters",
    "standingLetters": "Standing dead letters",
    "p95TotalUs": "p95, slowest target",
    "breakerOpenSecs": "Breakers open",
    "adapterDownSecs": "Adapters down",
}
"""The metrics that open the report, in its order, and what they are called there."""

_BREAK_DOWN = re.compile(r"(.+)By([A-Z]\w*)")
_TO = {"Sender": " from ", "Subject": " to "}


def headline(seen: ReportInputs) -> list[KeyNumber]:
    """Return the day's key numbers."""
    numbers = []
    for name, title in HEADLINE.items():
        unit, value, usual = METRICS[name].unit, seen.today(name), seen.usual(name)
        comparable = seen.day.is_over or unit == "us"
        numbers.append(
            KeyNumber(
                name=name,
                title=title,
                unit=unit,
                value=value,
                usual=usual,
                change=(value - usual) / usual if comparable and value is not None and usual else None,
                less_is_better=bool(METRICS[name].less_is_better),
                trend=[*seen.before(name), value] if usual is not None else [],
            )
        )
    return numbers


def metric_of(name: str) -> Metric:
    """Return how to read a metric or a break-down of one."""
    found = _BREAK_DOWN.fullmatch(name)
    base = found[1] if found is not None else name
    return METRICS.get(base, Metric(base))


def called(metric: str, key: str, *, of: str = "") -> str:
    """Return what a number is about, in words; beside the number `of` which it is a part, only what is its own."""
    found = _BREAK_DOWN.fullmatch(metric)
    base, by = (found[1], found[2]) if found is not None else (metric, "")
    title = "" if base == of else metric_of(metric).title
    if not key or (of and not found):  # a latency's parts are of the same target
        return title
    return f"{title}{_TO.get(by, ', ')}{short(key, 64)}".strip(", ")

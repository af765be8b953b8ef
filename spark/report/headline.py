"""The day's key numbers, and the title of each metric. A test compares the metrics with spark/tables/daily.py.

1. A break-down has the title and unit of its metric: ``messagesBySender`` are messages, from a sender.
2. A metric without a total (a latency) has the greatest value of its parts.
3. For a day that is not over, only metrics that do not depend on the day's length (latencies) are compared.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relay_core.protocol.report import KeyNumber, Unit
from spark.report.inputs import ReportInputs
from spark.report.wording import shorten


class Metric(NamedTuple):
    """The title and unit of a number of the day."""

    title: str
    unit: Unit = "count"
    less_is_better: bool | None = True
    """None if neither direction is better."""


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
"""The metrics that open the report, in order, with their titles there."""

_BREAK_DOWN = re.compile(r"(.+)By([A-Z]\w*)")
_TO = {"Sender": " from ", "Subject": " to "}


def headline(inputs: ReportInputs) -> list[KeyNumber]:
    """Return the day's key numbers."""
    numbers = []
    for name, title in HEADLINE.items():
        unit, value, usual = METRICS[name].unit, inputs.today(name), inputs.usual(name)
        comparable = inputs.day.is_over or unit == "us"
        numbers.append(
            KeyNumber(
                name=name,
                title=title,
                unit=unit,
                value=value,
                usual=usual,
                change=(value - usual) / usual if comparable and value is not None and usual else None,
                less_is_better=bool(METRICS[name].less_is_better),
                trend=[*inputs.before(name), value] if usual is not None else [],
            )
        )
    return numbers


def metric_of(name: str) -> Metric:
    """Return the metric of a name, which may be a break-down."""
    found = _BREAK_DOWN.fullmatch(name)
    base = found[1] if found is not None else name
    return METRICS.get(base, Metric(base))


def metric_name(metric: str, key: str, *, of: str = "") -> str:
    """Return a number's name in words; beside the number `of` which it is a part, only the part's own name."""
    found = _BREAK_DOWN.fullmatch(metric)
    base, by = (found[1], found[2]) if found is not None else (metric, "")
    title = "" if base == of else metric_of(metric).title
    if not key or (of and not found):  # a latency's parts are of the same target
        return title
    return f"{title}{_TO.get(by, ', ')}{shorten(key, 64)}".strip(", ")

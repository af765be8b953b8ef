"""Which tables a report shows, and how: `LAYOUT` is the whole list, in the order of the page.

The nightly run orders and limits each table by it (`descending` first, then `ascending`, then `limit` rows), so that
only the rows shown leave Spark. The Parquet tables beside the report hold all rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from relay_core.protocol.report import TableColumn, Unit

STEPS = {"queue": "waiting", "handle": "handling", "total": "end to end"}
"""The display names of the steps of a delivery."""

_TEXT = re.compile("metric|direction|subject|sender|name|step|code|adapter|job|stateAtEnd|lastDetail|lastOutcome")
_UNITS: dict[str, Unit] = {
    "value": "varies",
    "usual": "varies",
    "hour": "hour",
    "bytes": "bytes",
    "peakMinute": "time",
    "AtEnd": "flag",
    "At": "time",
    "Us": "us",
    "Ms": "ms",
    "Secs": "secs",
    "Share": "share",
}
"""Units by the ending of a column's name; other numbers are counts."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How one table is shown."""

    name: str
    title: str
    about: str
    columns: tuple[TableColumn, ...]
    descending: tuple[str, ...]
    """Columns that order the rows, largest first."""
    ascending: tuple[str, ...]
    """Columns that break ties."""
    bar: str | None = None
    """The column drawn as bars."""
    limit: int = 100


def _columns(names: str) -> tuple[TableColumn, ...]:
    """Return columns from a list such as ``sender, bytes: size``; a title is given where it is not the name."""
    return tuple(_column(*name.split(": ")) for name in names.split(", "))


def _column(name: str, title: str = "") -> TableColumn:
    unit = (
        "text" if _TEXT.fullmatch(name) else next((unit for end, unit in _UNITS.items() if name.endswith(end)), "count")
    )
    return TableColumn(name=name, title=title or name, unit=unit)


LAYOUT = (
    TableLayout(
        "anomalies",
        "What changed",
        "Numbers far from the usual, measured by the median and the spread of the 14 days before.",
        _columns("metric: what, value: today, usual, score, direction"),
        descending=("score",),
        ascending=("metric", "key"),
        limit=200,
    ),
    TableLayout(
        "throughput",
        "Busiest hours",
        "Messages and bytes published in an hour, by subject and sender, and how many were refused.",
        _columns("hour, subject, sender, messages, bytes: size, refused"),
        descending=("messages", "refused"),
        ascending=("hour", "subject", "sender"),
        bar="messages",
    ),
    TableLayout(
        "latency",
        "Latency",
        "How long deliveries took, by target: waiting in the mailbox, handling, and from publish to the end.",
        _columns("name: target, step, messages, p50Us: p50, p95Us: p95, p99Us: p99, maxUs: longest"),
        descending=("p95Us",),
        ascending=("name", "target", "step"),
        bar="p95Us",
        limit=150,
    ),
    TableLayout(
        "refusals",
        "Refusals",
        "Messages that a rule refused: the reason, the sender, the subject, and the first and last time.",
        _columns("code: reason, sender, subject, refused, firstAt: first, lastAt: last"),
        descending=("refused",),
        ascending=("code", "sender", "subject", "target"),
        bar="refused",
    ),
    TableLayout(
        "dead_letters",
        "Dead letters",
        "Messages that could not be delivered, by reason and target: arrivals, outcomes, and the age of the rest.",
        _columns(
            "code: reason, name: target, letters: arrived, replayed, replaced, purged, standing, "
            "youngerThanHour: < 1 h, youngerThanDay: < 1 d, youngerThanWeek: < 1 w, older"
        ),
        descending=("standing", "letters"),
        ascending=("code", "name", "target"),
        bar="standing",
    ),
    TableLayout(
        "senders",
        "Senders",
        "What each sender published, and its busiest minute against its limit.",
        _columns(
            "sender, messages, bytes: size, peakMinute: busiest, peakMessages: in it, limitPerMinute: limit, "
            "peakShare: of limit, refused, refusedShare: refused %, rateLimited: rate limited"
        ),
        descending=("messages", "refused"),
        ascending=("sender",),
        bar="messages",
    ),
    TableLayout(
        "pressure",
        "Mailbox pressure",
        "Mailboxes above their warning level: how long, how often, and the worst depth.",
        _columns(
            "name: mailbox, episodes: times, aboveSecs: above for, worstDepth: worst depth, limit, "
            "worstShare: of limit, aboveAtEnd: at the end"
        ),
        descending=("worstShare", "aboveSecs"),
        ascending=("name", "target"),
        bar="worstShare",
    ),
    TableLayout(
        "breakers",
        "Breakers",
        "Targets that failed so often that their breaker opened: how often and how long.",
        _columns(
            "name: target, openings, openSecs: open, halfOpenSecs: half open, longestOpenSecs: longest, "
            "openAtEnd: at the end, lastDetail: last reason"
        ),
        descending=("openAtEnd", "openSecs", "openings"),
        ascending=("name", "target"),
        bar="openSecs",
    ),
    TableLayout(
        "adapters",
        "Adapters",
        "What each adapter delivered, how fast, and how long it was down.",
        _columns(
            "adapter, handled, failed, refused, successShare: success, p50Us: p50, p95Us: p95, downSecs: down, "
            "outages, stateAtEnd: state, lastDetail: last detail"
        ),
        descending=("downSecs", "failed", "handled"),
        ascending=("adapter",),
        bar="handled",
    ),
    TableLayout(
        "conversations",
        "Conversations",
        "Chains of messages that started with one message: the longest, and those in which a loop was stopped.",
        _columns(
            "sender: started by, subject, firstAt: at, messages, depth: hops, fanOut: fan-out, durationMs: took, "
            "callsSpent: calls, loopsStopped: loops stopped"
        ),
        descending=("loopsStopped", "messages", "durationMs"),
        ascending=("traceId",),
        bar="messages",
    ),
    TableLayout(
        "jobs",
        "Jobs",
        "Scheduled maintenance: how often each job ran, its outcomes, and how long it took.",
        _columns(
            "job, runs, ok, failed, timedOut: timed out, cancelled, p50Us: p50, maxUs: longest, lastOutcome: last, "
            "lastDetail: last detail"
        ),
        descending=("failed", "timedOut", "runs"),
        ascending=("job",),
    ),
)
"""Every table that a report shows."""

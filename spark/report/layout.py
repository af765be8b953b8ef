"""Which tables a report shows, and how: `LAYOUT` is the whole list, in the order of the page.

The nightly run orders and limits each table by it (`descending` first, then `ascending`, then `limit` rows), so that
no more rows leave Spark than are read. The Parquet tables beside the report hold them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay_core.protocol.report import TableColumn, Unit

STEPS = {"queue": "waiting", "handle": "handling", "total": "end to end"}
"""What the steps of a delivery are called where people read."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How one table is shown."""

    name: str
    title: str
    about: str
    columns: tuple[TableColumn, ...]
    descending: tuple[str, ...]
    """What the rows are ordered by, largest first."""
    ascending: tuple[str, ...]
    """What decides between equals."""
    bar: str | None = None
    """The column that is drawn as bars."""
    limit: int = 100


def _columns(**titles: tuple[str, Unit] | str) -> tuple[TableColumn, ...]:
    """Return columns by name: a title and a unit, or a title alone for a text."""
    return tuple(
        TableColumn(name=name, title=given)
        if isinstance(given, str)
        else TableColumn(name=name, title=given[0], unit=given[1])
        for name, given in titles.items()
    )


LAYOUT = (
    TableLayout(
        "anomalies",
        "What changed",
        "Numbers far from what is usual: the median of the 14 days before, and how far those days lie apart.",
        _columns(
            metric="what",
            value=("today", "varies"),
            usual=("usual", "varies"),
            score=("score", "count"),
            direction="direction",
        ),
        descending=("score",),
        ascending=("metric", "key"),
        limit=200,
    ),
    TableLayout(
        "throughput",
        "Busiest hours",
        "Messages and bytes published in an hour, by subject and sender, and how many were refused.",
        _columns(
            hour=("hour", "hour"),
            subject="subject",
            sender="sender",
            messages=("messages", "count"),
            bytes=("size", "bytes"),
            refused=("refused", "count"),
        ),
        descending=("messages", "refused"),
        ascending=("hour", "subject", "sender"),
        bar="messages",
    ),
    TableLayout(
        "latency",
        "Latency",
        "How long deliveries took, by target: waiting in the mailbox, handling, and from publish to the end.",
        _columns(
            name="target",
            step="step",
            messages=("messages", "count"),
            p50Us=("p50", "us"),
            p95Us=("p95", "us"),
            p99Us=("p99", "us"),
            maxUs=("longest", "us"),
        ),
        descending=("p95Us",),
        ascending=("name", "target", "step"),
        bar="p95Us",
        limit=150,
    ),
    TableLayout(
        "refusals",
        "Refusals",
        "Messages that a rule turned away: why, from whom, to what, and when first and last.",
        _columns(
            code="reason",
            sender="sender",
            subject="subject",
            refused=("refused", "count"),
            firstAt=("first", "time"),
            lastAt=("last", "time"),
        ),
        descending=("refused",),
        ascending=("code", "sender", "subject", "target"),
        bar="refused",
    ),
    TableLayout(
        "dead_letters",
        "Dead letters",
        "What could not be delivered, by reason and target: how many came, what became of them, how old the rest is.",
        _columns(
            code="reason",
            name="target",
            letters=("came", "count"),
            replayed=("replayed", "count"),
            replaced=("replaced", "count"),
            purged=("purged", "count"),
            standing=("standing", "count"),
            youngerThanHour=("< 1 h", "count"),
            youngerThanDay=("< 1 d", "count"),
            youngerThanWeek=("< 1 w", "count"),
            older=("older", "count"),
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
            sender="sender",
            messages=("messages", "count"),
            bytes=("size", "bytes"),
            peakMinute=("busiest", "time"),
            peakMessages=("in it", "count"),
            limitPerMinute=("limit", "count"),
            peakShare=("of limit", "share"),
            refused=("refused", "count"),
            refusedShare=("refused %", "share"),
            rateLimited=("rate limited", "count"),
        ),
        descending=("messages", "refused"),
        ascending=("sender",),
        bar="messages",
    ),
    TableLayout(
        "pressure",
        "Mailbox pressure",
        "Mailboxes that filled up above the warning: how long, how often, and how full at worst.",
        _columns(
            name="mailbox",
            episodes=("times", "count"),
            aboveSecs=("above for", "secs"),
            worstDepth=("worst depth", "count"),
            limit=("limit", "count"),
            worstShare=("of limit", "share"),
            aboveAtEnd=("at the end", "flag"),
        ),
        descending=("worstShare", "aboveSecs"),
        ascending=("name", "target"),
        bar="worstShare",
    ),
    TableLayout(
        "breakers",
        "Breakers",
        "Targets that failed so often that they were left alone: how often and how long.",
        _columns(
            name="target",
            openings=("openings", "count"),
            openSecs=("open", "secs"),
            halfOpenSecs=("half open", "secs"),
            longestOpenSecs=("longest", "secs"),
            openAtEnd=("at the end", "flag"),
            lastDetail="why last",
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
            adapter="adapter",
            handled=("handled", "count"),
            failed=("failed", "count"),
            refused=("refused", "count"),
            successShare=("success", "share"),
            p50Us=("p50", "us"),
            p95Us=("p95", "us"),
            downSecs=("down", "secs"),
            outages=("outages", "count"),
            stateAtEnd="state",
            lastDetail="last word",
        ),
        descending=("downSecs", "failed", "handled"),
        ascending=("adapter",),
        bar="handled",
    ),
    TableLayout(
        "conversations",
        "Conversations",
        "Chains of messages that followed from one: the longest, and those in which a loop was stopped.",
        _columns(
            sender="begun by",
            subject="subject",
            firstAt=("at", "time"),
            messages=("messages", "count"),
            depth=("hops", "count"),
            fanOut=("fan-out", "count"),
            durationMs=("took", "ms"),
            callsSpent=("calls", "count"),
            loopsStopped=("loops stopped", "count"),
        ),
        descending=("loopsStopped", "messages", "durationMs"),
        ascending=("traceId",),
        bar="messages",
    ),
    TableLayout(
        "jobs",
        "Jobs",
        "Scheduled upkeep: how often each ran, how it went, and how long it took.",
        _columns(
            job="job",
            runs=("runs", "count"),
            ok=("ok", "count"),
            failed=("failed", "count"),
            timedOut=("timed out", "count"),
            cancelled=("cancelled", "count"),
            p50Us=("p50", "us"),
            maxUs=("longest", "us"),
            lastOutcome="last",
            lastDetail="last word",
        ),
        descending=("failed", "timedOut", "runs"),
        ascending=("job",),
    ),
)
"""Every table that a report shows."""

"""What changed and what needs attention: the sentences that open the report.

1. Bad before warnings before notes before good news; within a level in the order of `RULES`.
2. A rule says at most `EACH` things; what is beyond is counted in one more sentence, so that one trouble that is
   everywhere hides no other.
3. Nothing bad and no warning is a quiet day, and said in one sentence.
4. Of a day that is not over nobody says that it has too little of anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from relay_core.protocol.report import Finding, Level
from relay_core.text.units import plural
from spark.report import troubles
from spark.report.headline import called, metric_of
from spark.report.inputs import ReportInputs, Row, counts_of
from spark.report.wording import listed, short, shown

EACH = 4
_LEVELS: tuple[Level, ...] = ("bad", "warn", "info", "good")
_BECAUSE = 3


class Rule(NamedTuple):
    """A source of findings, and what they are called when there are too many."""

    find: Callable[[ReportInputs], Iterable[Finding]]
    more: str


def changes(seen: ReportInputs) -> Iterator[Finding]:
    """Say which numbers are far from what is usual, and which parts explain it; those are not said again."""
    rows = sorted(seen.rows("anomalies"), key=lambda row: -abs(row.get("score") or 0))
    said = {(part.get("metric"), part.get("key")) for row in rows for part in row.get("because") or ()}
    for row in rows:
        name, key, is_up = str(row.get("metric")), str(row.get("key") or ""), row.get("direction") != "down"
        if (name, key) in said or (not is_up and not seen.day.is_over):
            continue
        metric = metric_of(name)
        better = metric.less_is_better is not None and is_up != metric.less_is_better
        value, usual = (shown(row.get(part), metric.unit) for part in ("value", "usual"))
        is_sender, is_subject = name.endswith("BySender"), key.startswith("relay.")
        yield Finding(
            level="good" if better else "warn",
            title=f"{called(name, key)}: {value}, usually {usual}",
            text=_because(row),
            table="anomalies",
            sender=key if is_sender and is_subject else None,
            subject=key if is_subject and not is_sender else None,
        )


def data(seen: ReportInputs) -> Iterator[Finding]:
    """Say what of the log could not be used."""
    if bad := counts_of(seen.ingest, "badLines"):
        reasons = listed([f"{number:,} {short(reason.replace('_', ' '), 64)}" for reason, number in bad.items()])
        yield Finding(
            level="warn",
            title=f"{plural(sum(bad.values()), 'line')} of the event log could not be read",
            text=f"{reasons}. They are kept beside the tables, under tables/aside, and are in no number here.",
        )
    if unknown := counts_of(seen.ingest, "unknownKinds"):
        kinds = listed([f"{number:,} {short(kind, 64)}" for kind, number in unknown.items()])
        yield Finding(
            level="info",
            title=f"{plural(sum(unknown.values()), 'event')} of kinds that this report does not know",
            text=f"{kinds}. A newer bus may have written them: they are kept, and no table has them.",
        )


def the_day(seen: ReportInputs) -> Iterator[Finding]:
    """Say what limits the whole report: a day that is not over, or nothing to compare it with."""
    if not seen.day.is_over:
        yield Finding(
            level="info",
            title=f"The day is not over: this is until {shown(seen.day.until_ms, 'time')[:5]} UTC",
            text="Counts are not compared with whole days. The nightly run makes the report anew.",
        )
    if not seen.known_days():
        yield Finding(
            level="info",
            title="There are no earlier days to compare with",
            text="What is usual is known after the next days; until then nothing is called unusual.",
        )


RULES = (
    Rule(troubles.breakers, "breakers"),
    Rule(troubles.adapters, "adapters"),
    Rule(troubles.mailboxes, "mailboxes"),
    Rule(troubles.jobs, "jobs"),
    Rule(changes, "unusual numbers"),
    Rule(troubles.dead_letters, "groups of dead letters"),
    Rule(troubles.loops, "conversations with loops"),
    Rule(troubles.senders, "senders"),
    Rule(troubles.refusals, "senders that were denied"),
    Rule(data, "things about the log"),
    Rule(the_day, "things about the day"),
)
"""Everything that is looked at, the most important first."""


def find(seen: ReportInputs) -> list[Finding]:
    """Return what there is to say about a day, the most important first."""
    found = [finding for rule in RULES for finding in _few(rule, list(rule.find(seen)))]
    ordered = sorted(found, key=lambda finding: _LEVELS.index(finding.level))
    return ordered if any(map(needs_attention, ordered)) else [_quiet(seen), *ordered]


def needs_attention(finding: Finding) -> bool:
    """Tell whether somebody should act on it."""
    return finding.level in ("bad", "warn")


def _few(rule: Rule, found: list[Finding]) -> Iterator[Finding]:
    for level in _LEVELS:
        alike = [finding for finding in found if finding.level == level]
        yield from alike[: EACH if len(alike) > EACH + 1 else EACH + 1]
        if len(alike) > EACH + 1:
            titles = "; ".join(finding.title for finding in alike[EACH : EACH + 2])
            yield Finding(
                level=level,
                title=f"And {len(alike) - EACH:,} more {rule.more}",
                text=f"{titles}; … The table has them all.",
                table=alike[EACH].table,
            )


def _quiet(seen: ReportInputs) -> Finding:
    messages = seen.today("messages")
    so_far = "" if seen.day.is_over else " so far"
    if not messages:
        return Finding(level="good", title=f"Nothing was published{so_far}", text="And nothing is wrong.")
    refused = seen.today("refusals")
    return Finding(
        level="good",
        title=f"A quiet day{so_far}: {plural(messages, 'message')}, nothing needs attention",
        text=f"{plural(refused, 'refusal')}, no dead letter waits, nothing is far from what is usual."
        if refused
        else "Nothing was refused, no dead letter waits, nothing is far from what is usual.",
    )


def _because(row: Row) -> str:
    parts = [part for part in row.get("because") or () if part.get("key")]
    if not parts:
        return "No single part of it stands out."
    said = []
    for part in parts[:_BECAUSE]:
        name, unit = str(part.get("metric")), metric_of(str(part.get("metric"))).unit
        words = called(name, str(part["key"]), of=str(row.get("metric")))
        said.append(f"{words} {shown(part.get('value'), unit)} (usually {shown(part.get('usual'), unit)})")
    return f"Most of it: {listed(said)}."

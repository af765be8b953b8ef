"""What changed and what needs attention: the sentences that open the report.

1. Problems come before warnings, notes and good news; within a level the order is that of `RULES`.
2. A rule contributes at most `EACH` findings per level and one that counts the rest, so that a widespread problem does
   not hide the others.
3. A day without problems and warnings is a quiet day, reported in one sentence.
4. For a day that is not over, low numbers are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from relay_core.protocol.report import Finding, Level
from relay_core.text.units import plural
from spark.report import troubles
from spark.report.headline import metric_name, metric_of
from spark.report.inputs import ReportInputs, Row, counts_of
from spark.report.wording import format_value, join_words, shorten

EACH = 4
_LEVELS: tuple[Level, ...] = ("bad", "warn", "info", "good")
_BECAUSE = 3


class Rule(NamedTuple):
    """A source of findings, and the noun that counts those beyond `EACH`."""

    find: Callable[[ReportInputs], Iterable[Finding]]
    more: str


def changes(inputs: ReportInputs) -> Iterator[Finding]:
    """Report numbers far from the usual, with the parts that explain them; the parts are not reported again."""
    rows = sorted(inputs.rows("anomalies"), key=lambda row: -abs(row.get("score") or 0))
    explained = {(part.get("metric"), part.get("key")) for row in rows for part in row.get("because") or ()}
    for row in rows:
        name, key, is_up = str(row.get("metric")), str(row.get("key") or ""), row.get("direction") != "down"
        if (name, key) in explained or (not is_up and not inputs.day.is_over):
            continue
        metric = metric_of(name)
        better = metric.less_is_better is not None and is_up != metric.less_is_better
        value, usual = (format_value(row.get(part), metric.unit) for part in ("value", "usual"))
        is_sender, is_subject = name.endswith("BySender"), key.startswith("relay.")
        yield Finding(
            level="good" if better else "warn",
            title=f"{metric_name(name, key)}: {value}, usually {usual}",
            text=_because(row),
            table="anomalies",
            sender=key if is_sender and is_subject else None,
            subject=key if is_subject and not is_sender else None,
        )


def data(inputs: ReportInputs) -> Iterator[Finding]:
    """Report lines and events of the log that could not be used."""
    if bad := counts_of(inputs.ingest, "badLines"):
        reasons = join_words([f"{number:,} {shorten(reason.replace('_', ' '), 64)}" for reason, number in bad.items()])
        yield Finding(
            level="warn",
            title=f"{plural(sum(bad.values()), 'line')} of the event log could not be read",
            text=f"{reasons}. They are kept in tables/aside and not counted here.",
        )
    if unknown := counts_of(inputs.ingest, "unknownKinds"):
        kinds = join_words([f"{number:,} {shorten(kind, 64)}" for kind, number in unknown.items()])
        yield Finding(
            level="info",
            title=f"{plural(sum(unknown.values()), 'event')} of unknown kinds",
            text=f"{kinds}. A newer bus may have written them. They are kept, but no table counts them.",
        )


def the_day(inputs: ReportInputs) -> Iterator[Finding]:
    """Report what limits the whole report: a day that is not over, or no history."""
    if not inputs.day.is_over:
        yield Finding(
            level="info",
            title=f"The day is not over: this report ends at {format_value(inputs.day.until_ms, 'time')[:5]} UTC",
            text="Counts are not compared with whole days. The nightly run will make the full report.",
        )
    if not inputs.known_days():
        yield Finding(
            level="info",
            title="There are no earlier days to compare with",
            text="Unusual numbers are reported once there are a few days of history.",
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
    Rule(data, "notes about the log"),
    Rule(the_day, "notes about the day"),
)
"""All rules, the most important first."""


def find(inputs: ReportInputs) -> list[Finding]:
    """Return the findings of a day, the most important first."""
    found = [finding for rule in RULES for finding in _few(rule, list(rule.find(inputs)))]
    ordered = sorted(found, key=lambda finding: _LEVELS.index(finding.level))
    return ordered if any(map(needs_attention, ordered)) else [_quiet(inputs), *ordered]


def needs_attention(finding: Finding) -> bool:
    """Return True if an operator should act on the finding."""
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


def _quiet(inputs: ReportInputs) -> Finding:
    messages = inputs.today("messages")
    so_far = "" if inputs.day.is_over else " so far"
    if not messages:
        return Finding(level="good", title=f"Nothing was published{so_far}", text="Nothing is wrong.")
    refused = inputs.today("refusals")
    refusals = plural(refused, "refusal") if refused else "Nothing was refused"
    return Finding(
        level="good",
        title=f"A quiet day{so_far}: {plural(messages, 'message')}, nothing needs attention",
        text=f"{refusals}, no dead letter is waiting, no number is far from the usual.",
    )


def _because(row: Row) -> str:
    parts = [part for part in row.get("because") or () if part.get("key")]
    if not parts:
        return "No single part of it stands out."
    causes = []
    for part in parts[:_BECAUSE]:
        name, unit = str(part.get("metric")), metric_of(str(part.get("metric"))).unit
        words = metric_name(name, str(part["key"]), of=str(row.get("metric")))
        causes.append(
            f"{words} {format_value(part.get('value'), unit)} (usually {format_value(part.get('usual'), unit)})"
        )
    return f"Most of it: {join_words(causes)}."

"""What is or was wrong: breakers, adapters, mailboxes, dead letters, senders, refusals, loops, jobs.

Each function is a rule: rows of one table in, findings out, the worst first. ``bad`` still fails at the end of the day,
``warn`` should be looked at. A finding says what happened, how much, and which command to run next. A command contains
a name only if the name is safe in a shell, because names are untrusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay_core.protocol.report import Finding
from relay_core.text.units import percent, plural
from spark.report.inputs import ReportInputs, Row, name_of
from spark.report.wording import (
    describe_code,
    format_duration,
    format_value,
    join_words,
    safe_argument,
    shorten,
)

DOWN = frozenset({"starting", "disconnected", "error"})
"""States in which an adapter delivers nothing."""
NEAR = 0.8
"""The share of its limit at which a sender is close to it."""
_OFTEN = 3
_LONG_SECS = 60
_FAILS_SHARE = 0.05
_MAX_DETAIL = 160
_MAX_NAME = 64


def breakers(inputs: ReportInputs) -> Iterator[Finding]:
    """Report breakers that are open, or were open often or for long."""
    for row in inputs.rows("breakers"):
        name, times, secs = _name(row), _number(row, "openings"), _number(row, "openSecs")
        is_open = bool(row.get("openAtEnd"))
        if is_open:
            state = "is open"
        elif times >= _OFTEN:
            state = f"opened {plural(times, 'time')}"
        elif secs >= _LONG_SECS:
            state = f"was open for {format_duration(secs)}"
        else:
            continue
        opened = f", opened {plural(times, 'time')}." if times else " since before the day."
        yield Finding(
            level="bad" if is_open else "warn",
            title=f"The breaker of {name} {state}",
            text=f"Open for {format_duration(secs)}{opened}{_last(row)}",
            command="relay breakers",
            table="breakers",
            **_target_of(row),
        )


def adapters(inputs: ReportInputs) -> Iterator[Finding]:
    """Report adapters that are down, were down, or fail."""
    for row in inputs.rows("adapters"):
        name, down, outages = _shown(row.get("adapter")), _number(row, "downSecs"), _number(row, "outages")
        failed, state = _number(row, "failed"), row.get("stateAtEnd")
        share, safe_name = failed / ((_number(row, "handled") + failed) or 1), safe_argument(row.get("adapter"))
        fails = failed >= _OFTEN and share >= _FAILS_SHARE
        if state in DOWN:
            title = f"Adapter {name} is down ({state})"
        elif down >= _LONG_SECS or outages >= _OFTEN:
            title = f"Adapter {name} was down for {format_duration(down)}"
        elif fails:
            title = f"Adapter {name} failed {plural(failed, 'delivery', 'deliveries')}"
        else:
            continue
        times = f" in {plural(outages, 'outage')}" if outages else ""
        text = f"Down for {format_duration(down)}{times}." if down else ""
        if fails:
            text += f" {plural(failed, 'delivery', 'deliveries')} failed, {percent(share)} of all."
        yield Finding(
            level="bad" if state in DOWN else "warn",
            title=title,
            text=(text + _last(row)).strip(),
            command=f"relay adapters test {safe_name}" if safe_name else "relay adapters",
            table="adapters",
        )


def mailboxes(inputs: ReportInputs) -> Iterator[Finding]:
    """Report mailboxes that are full or above their warning, or were full."""
    for row in inputs.rows("pressure"):
        name, share, at_end = _name(row), _number(row, "worstShare"), row.get("aboveAtEnd")
        full = share >= 1
        if not full and not at_end:
            continue
        state = "was full" if not at_end else "is full or nearly so" if full else "is above its warning"
        depth, limit = (format_value(row.get(column), "count") for column in ("worstDepth", "limit"))
        text = f"It held up to {depth} of {limit} messages ({percent(share)}), "
        text += f"above the warning for {format_duration(_number(row, 'aboveSecs'))}."
        if full:
            text += " Further messages were refused (backpressure)."
        yield Finding(
            level="bad" if full and at_end else "warn",
            title=f"The mailbox of {name} {state}",
            text=text,
            command="relay endpoints",
            table="pressure",
            **_target_of(row),
        )


def dead_letters(inputs: ReportInputs) -> Iterator[Finding]:
    """Report dead letters that are still waiting."""
    for row in inputs.rows("dead_letters"):
        standing, came, older = _number(row, "standing"), _number(row, "letters"), _number(row, "older")
        if not standing:
            continue
        text = f"{format_value(came, 'count')} arrived on this day." if came else "None of them arrived on this day."
        if older:
            text += " All are older than a week." if older == standing else f" Older than a week: {older:,}."
        command = "relay dlq list"
        if code := safe_argument(row.get("code")):
            command += f" --code {code}"
        name = safe_argument(row.get("name")) or ""  # the name of an adapter is its id, not an endpoint
        if target := name if name.startswith("relay.") else safe_argument(row.get("target")):
            command += f" --endpoint {target}"
        yield Finding(
            level="warn",
            title=f"{plural(standing, 'dead letter')} of {_name(row)}: {_shown(describe_code(row.get('code')))}",
            text=text,
            command=command,
            table="dead_letters",
            **_target_of(row),
        )


def senders(inputs: ReportInputs) -> Iterator[Finding]:
    """Report senders that reached their rate limit, or came close."""
    for row in inputs.rows("senders"):
        name, limit = _shown(row.get("sender")), row.get("limitPerMinute")
        refused, share = _number(row, "rateLimited"), _number(row, "peakShare")
        if not refused and (limit is None or share < NEAR):
            continue
        peak = f"Its busiest minute, {row.get('peakMinute')}, had {plural(_number(row, 'peakMessages'), 'message')}"
        peak += f" against {format_value(limit, 'count')} a minute ({percent(share)})." if limit is not None else "."
        yield Finding(
            level="warn" if refused else "info",
            title=f"{name} {'reached' if refused else 'came close to'} its rate limit",
            text=(f"{plural(refused, 'message')} refused. " if refused else "") + peak,
            command="relay senders",
            table="senders",
            sender=row.get("sender"),
        )


def refusals(inputs: ReportInputs) -> Iterator[Finding]:
    """Report denied senders; other refusals follow from breakers, mailboxes, limits and budgets."""
    denied: dict[tuple[str, str], list[Row]] = {}
    for row in inputs.rows("refusals"):
        if row.get("code") in ("access_denied", "not_bound", "sender_reserved"):
            denied.setdefault((str(row.get("sender")), str(row["code"])), []).append(row)
    counts = {key: sum(_number(row, "refused") for row in rows) for key, rows in denied.items()}
    for (sender, code), times in sorted(counts.items(), key=lambda item: -item[1]):
        rows = denied[sender, code]
        to = [_shown(row["subject"]) for row in rows if row.get("subject")]
        more = [plural(len(to) - 3, "more subject")] if len(to) > 3 else []
        where = f" To {join_words([*to[:3], *more])}." if to else ""
        yield Finding(
            level="warn",
            title=f"{_shown(sender)} was denied {plural(times, 'time')}",
            text=f"{describe_code(code).capitalize()}.{where} If it should be allowed, add a rule.",
            command="relay access list" if code == "access_denied" else "relay token list",
            table="refusals",
            sender=sender if rows[0].get("sender") else None,
        )


def loops(inputs: ReportInputs) -> Iterator[Finding]:
    """Report conversations in which a loop was stopped."""
    for row in inputs.rows("conversations"):
        if stopped := _number(row, "loopsStopped"):
            trace, messages, hops = row.get("traceId"), _number(row, "messages"), _number(row, "depth")
            loops_were, sender = plural(stopped, "loop was", "loops were"), _shown(row.get("sender"))
            yield Finding(
                level="warn",
                title=f"{loops_were} stopped in a conversation of {sender}",
                text=f"It began with {_shown(row.get('subject'))} and had {plural(messages, 'message')} over "
                f"{plural(hops, 'hop')}.",
                command=f"relay trace {trace} --conversation" if safe_argument(trace) else None,
                table="conversations",
                trace_id=trace,
                sender=row.get("sender"),
                subject=row.get("subject"),
            )


def jobs(inputs: ReportInputs) -> Iterator[Finding]:
    """Report jobs that failed; a job whose last run succeeded is no longer bad."""
    for row in inputs.rows("jobs"):
        failed, late = _number(row, "failed"), _number(row, "timedOut")
        if not failed and not late:
            continue
        name, last = _shown(row.get("job")), row.get("lastOutcome")
        runs = f"of {plural(_number(row, 'runs'), 'run')}"
        text = f"{failed:g} {runs} failed" if failed else f"{late:g} {runs} took too long"
        text += f", {late:g} took too long." if failed and late else "."
        if last == "ok":
            text += " The last run succeeded."
        yield Finding(
            level="bad" if last in ("failed", "timed_out") else "warn",
            title=f"Job {name} failed" if failed else f"Job {name} took too long",
            text=text + _last(row),
            command="relay jobs",
            table="jobs",
        )


def _shown(name: Any) -> str:
    """Return a name cut to fit a sentence."""
    return shorten(name, _MAX_NAME) if name else "an unnamed sender"


def _name(row: Row) -> str:
    return shorten(name_of(row), _MAX_NAME)


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return value if isinstance(value, int | float) and value == value else 0


def _last(row: Row) -> str:
    """Return the last detail of a row as a sentence."""
    return f" Last: {shorten(row['lastDetail'], _MAX_DETAIL)}" if row.get("lastDetail") else ""


def _target_of(row: Row) -> dict[str, Any]:
    """Return the fields of a finding that lead to its target."""
    name = row.get("name")
    subject = name if isinstance(name, str) and name.startswith("relay.") else None
    return {"target": row.get("target"), "subject": subject}

"""What is wrong at the day's end, or was: breakers, adapters, mailboxes, dead letters, senders, refusals, loops, jobs.

Each function is a rule: rows of one table in, findings out, the worst first. ``bad`` is what still fails at the end of
the day, ``warn`` is what somebody should look at. Each says what, how much, and what to type next; a command names only
what is a plain word, whatever strangers call themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay_core.protocol.report import Finding, Level
from relay_core.text.units import percent, plural
from spark.report.inputs import ReportInputs, Row, name_of
from spark.report.wording import code_words, duration, listed, short, shown, word

DOWN = frozenset({"starting", "disconnected", "error"})
"""The states of an adapter in which it delivers nothing."""
NEAR = 0.8
"""Of a sender's limit: from here on it is close."""
_OFTEN = 3
_LONG_SECS = 60
_FAILS_SHARE = 0.05
_SAID = 160
_NAMED = 64


def breakers(seen: ReportInputs) -> Iterator[Finding]:
    """Say which targets are left alone, and which were often or for long."""
    for row in seen.rows("breakers"):
        name, times, secs = _name(row), _number(row, "openings"), _number(row, "openSecs")
        text = f"Open for {duration(secs)}" + (
            f", opened {plural(times, 'time')}." if times else " since before the day."
        )
        text += _said(row.get("lastDetail"))
        about = {"command": "relay breakers", "table": "breakers", **_to(row)}
        if row.get("openAtEnd"):
            yield Finding(level="bad", title=f"The breaker of {name} is open", text=text, **about)
        elif times >= _OFTEN:
            yield Finding(
                level="warn", title=f"The breaker of {name} opened {plural(times, 'time')}", text=text, **about
            )
        elif secs >= _LONG_SECS:
            yield Finding(
                level="warn", title=f"The breaker of {name} was open for {duration(secs)}", text=text, **about
            )


def adapters(seen: ReportInputs) -> Iterator[Finding]:
    """Say which adapters are down, were down, or fail."""
    for row in seen.rows("adapters"):
        name, down, outages = _called(row.get("adapter")), _number(row, "downSecs"), _number(row, "outages")
        failed, state = _number(row, "failed"), row.get("stateAtEnd")
        share = failed / ((_number(row, "handled") + failed) or 1)
        fails = failed >= _OFTEN and share >= _FAILS_SHARE
        level: Level = "bad" if state in DOWN else "warn"
        if state in DOWN:
            title = f"Adapter {name} is down ({state})"
        elif down >= _LONG_SECS or outages >= _OFTEN:
            title = f"Adapter {name} was down for {duration(down)}"
        elif fails:
            title = f"Adapter {name} failed {plural(failed, 'delivery', 'deliveries')}"
        else:
            continue
        text = f"Down for {duration(down)}" + (f" in {plural(outages, 'outage')}." if outages else ".") if down else ""
        if fails:
            text += f" {plural(failed, 'delivery', 'deliveries')} failed, {percent(share)} of what it was given."
        yield Finding(
            level=level,
            title=title,
            text=(text + _said(row.get("lastDetail"))).strip(),
            command=f"relay adapters test {name}" if word(row.get("adapter")) else "relay adapters",
            table="adapters",
        )


def mailboxes(seen: ReportInputs) -> Iterator[Finding]:
    """Say which mailboxes are full or above the warning, or were full."""
    for row in seen.rows("pressure"):
        name, share, at_end = _name(row), _number(row, "worstShare"), row.get("aboveAtEnd")
        full = share >= 1
        if not full and not at_end:
            continue
        title = f"The mailbox of {name} " + (
            "is above its warning" if at_end and not full else "is full or nearly so" if at_end else "was full"
        )
        text = f"It held up to {shown(row.get('worstDepth'), 'count')} of {shown(row.get('limit'), 'count')} messages "
        text += f"({percent(share)}), above the warning for {duration(_number(row, 'aboveSecs'))}."
        if full:
            text += " What came then was refused (backpressure)."
        yield Finding(
            level="bad" if full and at_end else "warn",
            title=title,
            text=text,
            command="relay endpoints",
            table="pressure",
            **_to(row),
        )


def dead_letters(seen: ReportInputs) -> Iterator[Finding]:
    """Say which dead letters still wait for somebody."""
    for row in seen.rows("dead_letters"):
        standing, came, older = _number(row, "standing"), _number(row, "letters"), _number(row, "older")
        if not standing:
            continue
        text = f"{plural(came, 'came', 'came')} in this day." if came else "None of them came in this day."
        if older:
            text += f" {'All' if older == standing else shown(older, 'count')} older than a week."
        command = "relay dlq list"
        if code := word(row.get("code")):
            command += f" --code {code}"
        name = word(row.get("name")) or ""  # an adapter's is its id, which is no endpoint
        if target := name if name.startswith("relay.") else word(row.get("target")):
            command += f" --endpoint {target}"
        yield Finding(
            level="warn",
            title=f"{plural(standing, 'dead letter')} of {_name(row)}: {_called(code_words(row.get('code')))}",
            text=text,
            command=command,
            table="dead_letters",
            **_to(row),
        )


def senders(seen: ReportInputs) -> Iterator[Finding]:
    """Say who ran into a rate limit, and who came close."""
    for row in seen.rows("senders"):
        name, limit = _called(row.get("sender")), row.get("limitPerMinute")
        held, share = _number(row, "rateLimited"), _number(row, "peakShare")
        if not held and (limit is None or share < NEAR):
            continue
        peak = f"Its busiest minute, {row.get('peakMinute')}, had {plural(_number(row, 'peakMessages'), 'message')}"
        peak += f" against {shown(limit, 'count')} a minute ({percent(share)})." if limit is not None else "."
        yield Finding(
            level="warn" if held else "info",
            title=f"{name} was held back by its rate limit" if held else f"{name} came close to its rate limit",
            text=(f"{plural(held, 'message')} refused. " if held else "") + peak,
            command="relay senders",
            table="senders",
            sender=row.get("sender"),
        )


def refusals(seen: ReportInputs) -> Iterator[Finding]:
    """Say who published what it may not; other refusals follow from breakers, mailboxes, limits and budgets."""
    denied: dict[tuple[str, str], list[Row]] = {}
    for row in seen.rows("refusals"):
        if row.get("code") in ("access_denied", "not_bound", "sender_reserved"):
            denied.setdefault((str(row.get("sender")), str(row["code"])), []).append(row)
    for (sender, code), rows in sorted(denied.items(), key=lambda one: -sum(_number(row, "refused") for row in one[1])):
        times = sum(_number(row, "refused") for row in rows)
        to = [_called(row["subject"]) for row in rows if row.get("subject")]
        more = [plural(len(to) - 3, "more subject")] if len(to) > 3 else []
        where = f" To {listed([*to[:3], *more])}." if to else ""
        yield Finding(
            level="warn",
            title=f"{_called(sender)} was denied {plural(times, 'time')}",
            text=f"{code_words(code).capitalize()}.{where} If it should be allowed, add a rule; if not, ask who it is.",
            command="relay access list" if code == "access_denied" else "relay token list",
            table="refusals",
            sender=sender if rows[0].get("sender") else None,
        )


def loops(seen: ReportInputs) -> Iterator[Finding]:
    """Say which conversations went in circles."""
    for row in seen.rows("conversations"):
        if stopped := _number(row, "loopsStopped"):
            trace, messages, hops = row.get("traceId"), _number(row, "messages"), _number(row, "depth")
            what, who = plural(stopped, "loop was", "loops were"), _called(row.get("sender"))
            yield Finding(
                level="warn",
                title=f"{what} stopped in a conversation of {who}",
                text=f"It began with {_called(row.get('subject'))} and came to {plural(messages, 'message')} over "
                f"{plural(hops, 'hop')}.",
                command=f"relay trace {trace} --conversation" if word(trace) else None,
                table="conversations",
                trace_id=trace,
                sender=row.get("sender"),
                subject=row.get("subject"),
            )


def jobs(seen: ReportInputs) -> Iterator[Finding]:
    """Say which jobs failed; one that last went well is no longer bad."""
    for row in seen.rows("jobs"):
        failed, late = _number(row, "failed"), _number(row, "timedOut")
        if not failed and not late:
            continue
        name, last = _called(row.get("job")), row.get("lastOutcome")
        runs = f"of {plural(_number(row, 'runs'), 'run')}"
        text = f"{failed:g} {runs} failed" if failed else f"{late:g} {runs} took too long"
        text += f", {late:g} took too long." if failed and late else "."
        if last == "ok":
            text += " The last one went well."
        yield Finding(
            level="bad" if last in ("failed", "timed_out") else "warn",
            title=f"Job {name} failed" if failed else f"Job {name} took too long",
            text=text + _said(row.get("lastDetail")),
            command="relay jobs",
            table="jobs",
        )


def _called(name: Any) -> str:
    """Return a name as a sentence takes it."""
    return short(name, _NAMED) if name else "somebody unnamed"


def _name(row: Row) -> str:
    return short(name_of(row), _NAMED)


def _number(row: Row, name: str) -> float:
    value = row.get(name)
    return value if isinstance(value, int | float) and value == value else 0


def _said(detail: Any) -> str:
    """Return what was last said about something, as a sentence of its own."""
    return f" Last: {short(detail, _SAID)}" if detail else ""


def _to(row: Row) -> dict[str, Any]:
    """Return where a finding about a target leads."""
    name = row.get("name")
    subject = name if isinstance(name, str) and name.startswith("relay.") else None
    return {"target": row.get("target"), "subject": subject}

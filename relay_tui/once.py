"""The state without a dashboard: as one JSON document for programs, or line by line for screen readers.

1. JSON is the first full picture of the state stream as it is on the wire, with `server` (which supervisor this is)
   and `alerts` (what should be looked at) beside it.
2. The plain form is sentences and lines of the form "name: value", what is wrong first. It has no colours, boxes,
   bars or abbreviations: durations and shares are words.
3. Nothing here imports Textual. Texts from outside are cleaned; JSON escapes everything that is not ASCII.
4. Exit codes: 0; 1 for an error, and silently for a reader that has gone; 3 if nobody is there; 5 if nobody answers
   in time; 130 after ctrl+c.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock
from relay_core.errors import RelayError, SupervisorUnavailable
from relay_core.messages.dead_letter import count_dead
from relay_core.messages.operator_views import ConfiguredAdapter, JobState
from relay_core.protocol.live_state import StateUpdate
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.live.alerts import Alert, breaker_words, find_alerts
from relay_tui.live.store import Store

OK, ERROR, UNREACHABLE, TIMED_OUT, INTERRUPTED = 0, 1, 3, 5, 130

_TIMEOUT_SECS = 10.0
_MOST = 20
"""Of each kind that are told one by one."""
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def print_once(socket: str | None, data_dir: str | None, *, as_json: bool) -> int:
    """Print the state of a supervisor; return the exit code."""
    try:
        picture = asyncio.run(_look(RelayClient(socket, data_dir=data_dir, name="relay-tui", timeout=_TIMEOUT_SECS)))
    except KeyboardInterrupt:
        return INTERRUPTED
    except TimeoutError:
        return _complain(TIMED_OUT, f"the supervisor has not answered within {_TIMEOUT_SECS:g} s")
    except SupervisorUnavailable as error:
        late = isinstance(error.__cause__, TimeoutError)
        return _complain(TIMED_OUT if late else UNREACHABLE, str(error))
    except (RelayError, OSError) as error:
        return _complain(ERROR, str(error))
    return _write(_document(*picture) if as_json else "\n".join(status_lines(picture[0])))


async def _look(client: RelayClient) -> tuple[Store, StateUpdate]:
    """Return the supervisor's state as the dashboard has it, and as it came."""
    store = Store(client, SystemClock(), lambda: None)
    async with client, asyncio.timeout(_TIMEOUT_SECS):
        store.info = await client.info()
        store.config = (await client.config()).config
        async with client.watch() as watch:
            store.state = await anext(watch)
            assert watch.update is not None
            return store, watch.update


def _document(store: Store, update: StateUpdate) -> str:
    assert store.info is not None
    alerts = [
        {"severity": "error" if one.style == "bad" else "warning", "text": one.text, "screen": one.view}
        for one in find_alerts(store)
    ]
    return json.dumps({**update.to_wire(), "server": store.info.to_wire(), "alerts": alerts}, indent=2)


def status_lines(store: Store) -> Iterator[str]:
    """Yield the state in words."""
    alerts = find_alerts(store)
    bad = [one for one in alerts if one.style == "bad"]
    warnings = [one for one in alerts if one.style != "bad"]
    if alerts:
        yield f"Relay needs attention: {plural(len(bad), 'problem')}, {plural(len(warnings), 'warning')}."
        yield from _some([f"Problem: {_words(one)}" for one in bad], "problems")
        yield from _some([f"Warning: {_words(one)}" for one in warnings], "warnings")
    else:
        yield "Relay is calm: nothing needs attention."
    if store.info is not None:
        info = store.info
        yield f"Supervisor: version {clean(info.version)}, process {info.pid}, up for {spoken(info.uptime_secs)}."
        yield f"Promise: {clean(info.promise)}."
        yield f"Data directory: {clean(info.data_dir)}"
        yield f"Socket: {clean(info.socket)}"
    yield from _traffic(store)
    yield from _mailboxes(store)
    yield from _senders(store)
    yield from _breakers(store)
    yield from _dead_letters(store)
    adapters = list(store.state.adapters.values())
    yield f"Adapters: {len(adapters) or 'none'}."
    yield from _some([_adapter(one) for one in adapters], "adapters")
    yield from _some([_job(one, store.now_ms()) for one in store.state.jobs.values()], "jobs")


def spoken(seconds: float) -> str:
    """Return a duration in words: its largest unit and, if that leaves something, the next."""
    if 0 < seconds < 1:
        return plural(max(round(seconds * 1000), 1), "millisecond")
    left = max(round(seconds), 0)
    words = []
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count:
            words.append(plural(count, unit))
        elif words:
            break
    return " and ".join(words[:2]) or "0 seconds"


def _traffic(store: Store) -> Iterator[str]:
    found = store.state.throughput
    if found is None:
        return
    yield f"Traffic: {found.rate_10s:.1f} messages a second over 10 seconds, {found.rate_60s:.1f} over a minute."
    yield f"Published since the start: {plural(found.publishes, 'message')}."
    if found.total_us.p95 is not None:
        yield f"Latency: 95 percent are handled within {spoken(found.total_us.p95 / 1e6)}."
    for code, count in found.refusals.items():
        yield f"Refused since the start, {clean(code)}: {count:,}."


def _mailboxes(store: Store) -> Iterator[str]:
    now = store.now_ms()
    boxes = sorted(store.state.mailboxes.values(), key=lambda one: (-one.pressure, -one.depth, one.subject))
    waiting = [one for one in boxes if one.depth]
    yield f"Mailboxes: {len(boxes):,}. Messages waiting: {sum(one.depth for one in boxes):,}."
    yield from _some(
        [
            f"Mailbox {clean(one.subject)}: {one.depth:,} waiting, {one.pressure * 100:.0f} percent full"
            + (f", the oldest for {spoken((now - one.oldest_at) / 1000)}." if one.oldest_at is not None else ".")
            for one in waiting
        ],
        "mailboxes with mail",
    )


def _senders(store: Store) -> Iterator[str]:
    senders = sorted(store.state.senders.items(), key=lambda pair: (-pair[1].count / max(pair[1].limit, 1), pair[0]))
    yield from _some(
        [f"Sender {clean(key)}: {one.count:,} of {one.limit:,} messages used." for key, one in senders if one.count],
        "senders",
    )


def _breakers(store: Store) -> Iterator[str]:
    now = store.now_ms()
    found = [(one.subject or key, one) for key, one in store.state.breakers.items() if one.state != "CLOSED"]
    yield f"Breakers that are not closed: {len(found) or 'none'}."
    lines = []
    for name, one in sorted(found, key=lambda pair: pair[0]):
        probe = f", next probe in {spoken((one.retry_at - now) / 1000)}" if one.retry_at is not None else ""
        failures = plural(one.consecutive_failures, "failure")
        lines.append(f"Breaker of {clean(name)}: {breaker_words(one)}, {failures} in a row{probe}.")
    yield from _some(lines, "breakers")


def _dead_letters(store: Store) -> Iterator[str]:
    groups = sorted(store.state.dead_letters.values(), key=lambda one: -one.count)
    yield f"Dead letters: {count_dead(groups):,}."
    yield from _some(
        [
            f"{'Partial copies' if one.partial else 'Dead letters'} for {clean(one.endpoint_subject)}, "
            f"{clean(one.code)}: {one.count:,}. "
            f"Such as: {clean(one.sample_reason)}"
            for one in groups
        ],
        "kinds of dead letters",
    )


def _adapter(adapter: ConfiguredAdapter) -> str:
    state = adapter.state
    if state is None:
        word = "disabled" if not adapter.enabled else "not running"
        return f"Adapter {clean(adapter.id)}: {word}."
    return (
        f"Adapter {clean(adapter.id)}: {state.state}, {state.delivered:,} delivered, {state.failed:,} failed, "
        f"{state.depth:,} waiting."
    )


def _job(job: JobState, now_ms: int) -> str:
    if job.problem is not None:
        how = f"cannot run: {clean(job.problem)}"
    elif job.running:
        how = "running now"
    elif not job.enabled:
        how = "runs by hand only"
    elif job.next_run is not None:
        how = f"runs in {spoken((job.next_run - now_ms) / 1000)}"
    else:
        how = "is not scheduled"
    last = "" if job.last is None or job.last.outcome is None else f", last time {job.last.outcome.replace('_', ' ')}"
    return f"Job {clean(job.name)}: {how}{last}."


def _words(alert: Alert) -> str:
    return alert.text.replace("%", " percent")


def _some(lines: list[str], what: str) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"And {len(lines) - _MOST:,} more {what}."


def _write(text: str) -> int:
    """Write to stdout; a reader that has gone away is not worth a word."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal of another encoding must not be a crash
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still to be written goes into nothing: Python writes it out as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    return OK


def _complain(code: int, text: str) -> int:
    sys.stderr.write(f"relay-tui: {clean(text)}\n")
    return code

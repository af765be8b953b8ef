"""The state without a dashboard: as one JSON document for programs, or line by line for screen readers.

1. JSON is the first full update of the state stream as it is on the wire, with `server` and `alerts` added.
2. The plain form is sentences and lines of the form "name: value", problems first. It has no colours, boxes, bars or
   abbreviations: durations and shares are words.
3. Nothing here imports Textual. Untrusted text is cleaned; JSON escapes everything that is not ASCII.
4. Exit codes: 0; 1 for an error, and for a closed stdout (silently); 3 without a supervisor; 5 if it does not
   respond in time; 130 after ctrl+c.
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
from relay_tui.live.alerts import breaker_words, find_alerts
from relay_tui.live.store import Store

OK, ERROR, UNREACHABLE, TIMED_OUT, INTERRUPTED = 0, 1, 3, 5, 130

_TIMEOUT_SECS = 10.0
_MOST = 20
"""Lines of each kind; the rest is counted."""
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def print_once(socket: str | None, data_dir: str | None, *, as_json: bool) -> int:
    """Print the state of a supervisor; return the exit code."""
    try:
        store, update = asyncio.run(
            _fetch_state(RelayClient(socket, data_dir=data_dir, name="relay-tui", timeout=_TIMEOUT_SECS))
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except TimeoutError:
        return _fail(TIMED_OUT, f"the supervisor did not respond within {_TIMEOUT_SECS:g} s")
    except SupervisorUnavailable as error:
        late = isinstance(error.__cause__, TimeoutError)
        return _fail(TIMED_OUT if late else UNREACHABLE, str(error))
    except (RelayError, OSError) as error:
        return _fail(ERROR, str(error))
    return _write(_document(store, update) if as_json else "\n".join(status_lines(store)))


async def _fetch_state(client: RelayClient) -> tuple[Store, StateUpdate]:
    """Return the state, and the update it came in."""
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
        {"severity": "error" if alert.style == "bad" else "warning", "text": alert.text, "screen": alert.view}
        for alert in find_alerts(store)
    ]
    return json.dumps({**update.to_wire(), "server": store.info.to_wire(), "alerts": alerts}, indent=2)


def status_lines(store: Store) -> Iterator[str]:
    """Yield the state in words."""
    alerts = find_alerts(store)
    bad = [alert for alert in alerts if alert.style == "bad"]
    warnings = [alert for alert in alerts if alert.style != "bad"]
    if alerts:
        yield f"Relay needs attention: {plural(len(bad), 'problem')}, {plural(len(warnings), 'warning')}."
        for name, found in (("Problem", bad), ("Warning", warnings)):
            lines = [f"{name}: {alert.text.replace('%', ' percent')}" for alert in found]
            yield from _some(lines, f"{name.lower()}s")
    else:
        yield "Relay is healthy: nothing needs attention."
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
    yield from _some([_adapter(adapter) for adapter in adapters], "adapters")
    yield from _some([_job(job, store.now_ms()) for job in store.state.jobs.values()], "jobs")


def spoken(seconds: float) -> str:
    """Return a duration in words: its two largest units."""
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
    traffic = store.state.throughput
    if traffic is None:
        return
    yield f"Traffic: {traffic.rate_10s:.1f} messages a second over 10 seconds, {traffic.rate_60s:.1f} over a minute."
    yield f"Published since the start: {plural(traffic.publishes, 'message')}."
    if traffic.total_us.p95 is not None:
        yield f"Latency: 95 percent are handled within {spoken(traffic.total_us.p95 / 1e6)}."
    for code, count in traffic.refusals.items():
        yield f"Refused since the start, {clean(code)}: {count:,}."


def _mailboxes(store: Store) -> Iterator[str]:
    now = store.now_ms()
    boxes = sorted(store.state.mailboxes.values(), key=lambda box: (-box.pressure, -box.depth, box.subject))
    yield f"Mailboxes: {len(boxes):,}. Messages waiting: {sum(box.depth for box in boxes):,}."
    yield from _some(
        [
            f"Mailbox {clean(box.subject)}: {box.depth:,} waiting, {box.pressure * 100:.0f} percent full"
            + (f", the oldest for {spoken((now - box.oldest_at) / 1000)}." if box.oldest_at is not None else ".")
            for box in boxes
            if box.depth
        ],
        "mailboxes with mail",
    )


def _senders(store: Store) -> Iterator[str]:
    senders = sorted(store.state.senders.items(), key=lambda pair: (-pair[1].count / max(pair[1].limit, 1), pair[0]))
    lines = [
        f"Sender {clean(name)}: {used.count:,} of {used.limit:,} messages used." for name, used in senders if used.count
    ]
    yield from _some(lines, "senders")


def _breakers(store: Store) -> Iterator[str]:
    now = store.now_ms()
    tripped = [
        (breaker.subject or key, breaker) for key, breaker in store.state.breakers.items() if breaker.state != "CLOSED"
    ]
    yield f"Breakers that are not closed: {len(tripped) or 'none'}."
    lines = []
    for name, breaker in sorted(tripped, key=lambda pair: pair[0]):
        probe = f", next probe in {spoken((breaker.retry_at - now) / 1000)}" if breaker.retry_at is not None else ""
        failures = plural(breaker.consecutive_failures, "failure")
        lines.append(f"Breaker of {clean(name)}: {breaker_words(breaker)}, {failures} in a row{probe}.")
    yield from _some(lines, "breakers")


def _dead_letters(store: Store) -> Iterator[str]:
    groups = sorted(store.state.dead_letters.values(), key=lambda group: -group.count)
    yield f"Dead letters: {count_dead(groups):,}."
    yield from _some(
        [
            f"{'Partial copies' if group.partial else 'Dead letters'} for {clean(group.endpoint_subject)}, "
            f"{clean(group.code)}: {group.count:,}. Latest reason: {clean(group.sample_reason)}"
            for group in groups
        ],
        "groups of dead letters",
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
        how = "runs only on request"
    elif job.next_run is not None:
        how = f"runs in {spoken((job.next_run - now_ms) / 1000)}"
    else:
        how = "is not scheduled"
    last = "" if job.last is None or job.last.outcome is None else f", last time {job.last.outcome.replace('_', ' ')}"
    return f"Job {clean(job.name)}: {how}{last}."


def _some(lines: list[str], what: str) -> Iterator[str]:
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"And {len(lines) - _MOST:,} more {what}."


def _write(text: str) -> int:
    """Write to stdout; a closed pipe is not reported."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that are not UTF-8
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout at exit: the rest goes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    return OK


def _fail(code: int, text: str) -> int:
    sys.stderr.write(f"relay-tui: {clean(text)}\n")
    return code

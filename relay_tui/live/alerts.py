"""Alerts: conditions that need the operator's attention, each with its screen. Their texts are safe to show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from relay_core.messages.dead_letter import count_dead
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.live.store import Store

if TYPE_CHECKING:
    from relay_core.protocol.live_state import LiveBreaker


class Alert(NamedTuple):
    """A condition that needs attention."""

    style: str
    """`bad` or `warn`."""
    text: str
    view: str
    argument: str | None = None


def find_alerts(store: Store) -> list[Alert]:
    """Return the alerts, errors first."""
    return sorted(_alerts(store), key=lambda alert: alert.style != "bad")


def _alerts(store: Store) -> Iterator[Alert]:
    state = store.state
    for problem in state.problems:
        yield Alert("bad", clean(problem), "adapters" if "adapters.json" in problem else "overview")
    for key, breaker in state.breakers.items():
        if breaker.state != "CLOSED":
            name = clean(breaker.subject or key)
            text = f"{name}: its breaker is {breaker_words(breaker)}"
            yield Alert("bad" if breaker.state == "OPEN" else "warn", text, "breakers", key)
    for key, box in state.mailboxes.items():
        if box.degraded:
            yield Alert("bad", f"{clean(box.subject)}: {clean(box.degraded)}", "mailboxes", key)
        if box.pressure >= store.warning_at:
            style = "bad" if box.pressure >= 1 else "warn"
            yield Alert(style, f"{clean(box.subject)} is {box.pressure:.0%} full", "mailboxes", key)
    for key, adapter in state.adapters.items():
        if adapter.problem:
            yield Alert("bad", f"adapter {clean(key)}: {clean(adapter.problem)}", "adapters", key)
        elif adapter.state is not None and adapter.state.state == "error":
            yield Alert("bad", f"adapter {clean(key)}: {clean(adapter.state.detail or 'error')}", "adapters", key)
        elif adapter.warning:
            yield Alert("warn", f"adapter {clean(key)}: {clean(adapter.warning)}", "adapters", key)
    for key, job in state.jobs.items():
        if job.last is not None and job.last.outcome in ("failed", "timed_out"):
            word = job.last.outcome.replace("_", " ")
            yield Alert("bad", f"job {clean(key)} {word}: {clean(job.last.error or 'see its output')}", "jobs", key)
    growth, secs = store.history.dead.change("", count_dead(state.dead_letters.values()), 60.0)
    if growth > 0 and secs > 0:
        yield Alert("warn", f"{plural(growth, 'new dead letter')} in the last minute", "dead-letters")


def breaker_words(breaker: LiveBreaker) -> str:
    """Return the state of a breaker in words."""
    return "forced open" if breaker.forced else breaker.state.replace("_", " ").lower()

"""How the adapters screen says what it knows of one adapter. Pure.

An adapter has a breaker for each of its mailboxes: ``relay.adapter.{id}`` and, if it has lanes, those below it. A
binding is shown with the adapters that take its chat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.messages.subjects import ADAPTER_PREFIX, adapter_of, adapter_subject, pattern_covers
from relay_core.protocol.live_state import LiveBreaker, LiveState
from relay_core.rules.bindings import Binding
from relay_core.text.sanitize import clean
from relay_core.text.units import about, date_time, plural, time_until
from relay_tui.views.facts import fact, long_fact
from relay_tui.views.states import breaker_state
from relay_tui.widgets.styled_lines import Line, Piece, line

_BEGINS = {"chat": "the chat begins", "agent": "the agent begins", "both": "either begins"}


def health_of(adapter: ConfiguredAdapter) -> Piece:
    """Return what the last probe has found."""
    if adapter.state is None or adapter.state.healthy is None:
        return ("– unknown", "dim")
    return ("✓ well", "ok") if adapter.state.healthy else ("✗ not well", "bad")


def breakers_of(state: LiveState, adapter_id: str) -> list[tuple[str, LiveBreaker]]:
    """Return the breakers of an adapter's mailboxes with their subjects, its main one first."""
    found = [
        (one.subject, one)
        for one in state.breakers.values()
        if one.subject is not None and one.subject.startswith(ADAPTER_PREFIX) and adapter_of(one.subject) == adapter_id
    ]
    return sorted(found, key=lambda pair: pair[0])


def detail_lines(
    adapter: ConfiguredAdapter, live: LiveState, bindings: Sequence[Binding], now: int, width: int
) -> Iterator[Line]:
    """Yield what is known of an adapter, what is wrong first."""
    state = adapter.state
    yield line((f" {clean(adapter.id)}", "title"), (f"  {clean(adapter.type)}  {adapter_subject(adapter.id)}", "dim"))
    for name, text, style in (
        ("problem", adapter.problem, "bad"),
        ("warning", adapter.warning, "warn"),
        ("state", state.detail if state is not None else None, ""),
        ("last error", state.last_error if state is not None else None, "bad"),
    ):
        if text:
            yield from long_fact(name, clean(text), style, width)
    if adapter.retry_at is not None:
        yield fact("next start", time_until(adapter.retry_at, now))
    if adapter.restarts:
        yield fact("restarts", plural(adapter.restarts, "restart"))
    if not adapter.enabled:
        yield fact("state", "disabled: its mail waits; E runs it again")
    elif state is not None:
        priority = f"priority {state.priority}" + (", detached" if state.detached else "")
        yield fact("takes", clean(", ".join(state.patterns) or "nothing"), (f"  {priority}", "dim"))
        yield fact("since", date_time(state.since), (f"  {about((now - state.since) / 1000)} ago", "dim"))
    for subject, breaker in breakers_of(live, adapter.id):
        failures = plural(breaker.consecutive_failures, "failure") + " in a row"
        retry = f", next probe {time_until(breaker.retry_at, now)}" if breaker.retry_at is not None else ""
        yield fact("breaker", breaker_state(breaker), f"  {failures}{retry}", (f"  {clean(subject)}", "dim"))
    patterns = state.patterns if state is not None else ()
    for one in bindings:
        if any(pattern_covers(mine, one.chat) or pattern_covers(one.chat, mine) for mine in patterns):
            yield fact("binding", f"{clean(one.chat)} → {clean(one.agent)}", (f"  {_BEGINS[one.start]}", "dim"))

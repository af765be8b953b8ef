"""One adapter in full. No I/O.

An adapter has a breaker for each of its mailboxes: ``relay.adapter.{id}`` and, if it has lanes, those below it. A
binding is shown with the adapters whose patterns match its chat.
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

_STARTS = {"chat": "started by the chat", "agent": "started by the agent", "both": "started by either"}


def health_of(adapter: ConfiguredAdapter) -> Piece:
    """Return the result of the last health probe."""
    if adapter.state is None or adapter.state.healthy is None:
        return ("– unknown", "dim")
    return ("✓ healthy", "ok") if adapter.state.healthy else ("✗ unhealthy", "bad")


def breakers_of(state: LiveState, adapter_id: str) -> list[tuple[str, LiveBreaker]]:
    """Return the breakers of an adapter's mailboxes by subject; the main one is first."""
    found = [
        (subject, breaker)
        for breaker in state.breakers.values()
        if (subject := breaker.subject or "").startswith(ADAPTER_PREFIX) and adapter_of(subject) == adapter_id
    ]
    return sorted(found, key=lambda pair: pair[0])


def detail_lines(
    adapter: ConfiguredAdapter, live: LiveState, bindings: Sequence[Binding], now: int, width: int
) -> Iterator[Line]:
    """Yield the lines of an adapter, problems first."""
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
        yield fact("state", "disabled: its messages wait; E enables it")
    elif state is not None:
        priority = f"priority {state.priority}" + (", detached" if state.detached else "")
        yield fact("patterns", clean(", ".join(state.patterns) or "none"), (f"  {priority}", "dim"))
        yield fact("since", date_time(state.since), (f"  {about((now - state.since) / 1000)} ago", "dim"))
    for subject, breaker in breakers_of(live, adapter.id):
        failures = plural(breaker.consecutive_failures, "failure") + " in a row"
        retry = f", next probe {time_until(breaker.retry_at, now)}" if breaker.retry_at is not None else ""
        yield fact("breaker", breaker_state(breaker), f"  {failures}{retry}", (f"  {clean(subject)}", "dim"))
    patterns = state.patterns if state is not None else ()
    for binding in bindings:
        chat = binding.chat
        if any(pattern_covers(pattern, chat) or pattern_covers(chat, pattern) for pattern in patterns):
            yield fact("binding", f"{clean(chat)} → {clean(binding.agent)}", (f"  {_STARTS[binding.start]}", "dim"))

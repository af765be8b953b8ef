"""The panels of problems: breakers that are not closed, dead letters and their growth, adapters."""

from __future__ import annotations

from relay_core.messages.dead_letter import count_dead
from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.protocol.live_state import LiveBreaker
from relay_core.text.sanitize import clean
from relay_core.text.units import about, clock_time, number, plural, time_until
from relay_tui.live.store import Store
from relay_tui.views.dead_letters.selection import code_of, group_filter
from relay_tui.views.overview.panel_content import PanelContent, PanelSize, fit_subject, list_entries
from relay_tui.views.states import CIRCUITS, adapter_rank, adapter_state
from relay_tui.widgets.styled_lines import Line, Piece, fit

_GROWTH_SECS = 60.0


def breakers(store: Store, size: PanelSize) -> PanelContent:
    """Return the breakers that are not closed, and their next probes."""
    breakers = store.state.breakers
    order = sorted(
        (key for key, breaker in breakers.items() if breaker.state != "CLOSED"),
        key=lambda key: (breakers[key].state != "OPEN", breakers[key].subject or key),
    )

    def line_of(key: str) -> Line:
        return _breaker_line(key, breakers[key], store.now_ms(), size.width)

    empty: Piece = (f"✓ all {len(breakers)} are closed", "ok") if breakers else ("no deliveries yet", "dim")
    entries = list_entries("breaker", "breakers", order, order, size, line_of, empty=empty)
    note: Piece = (f"✗ {len(order)} of {len(breakers)} not closed", "bad") if order else (f"{len(breakers)}", "dim")
    return PanelContent(note, entries, max(len(order), 1))


def _breaker_line(key: str, breaker: LiveBreaker, now: int, width: int) -> Line:
    state: Piece = ("✗ forced", "bad") if breaker.forced else CIRCUITS[breaker.state]
    if breaker.state != "OPEN":
        probe = "probing now"
    else:
        probe = "until reset" if breaker.forced else f"probe {time_until(breaker.retry_at, now)}"
    failures = plural(breaker.consecutive_failures, "failure") if width >= 50 else ""
    return (
        (fit(state[0], 12), state[1]),
        (fit_subject(breaker.subject or key, width - 26 - (13 if failures else 0)), ""),
        (fit(failures, 13, right=True), "dim") if failures else ("", ""),
        (" ", ""),
        (fit(probe, 13, right=True), "strong"),
    )


def dead_letters(store: Store, size: PanelSize) -> PanelContent:
    """Return the groups of dead letters, largest first, and their growth."""
    groups = store.state.dead_letters
    total = count_dead(groups.values())
    growth, secs = store.history.dead.change("", total, _GROWTH_SECS)
    order = sorted(groups, key=lambda key: (-groups[key].count, key))
    wide = size.width >= 50

    def line_of(key: str) -> Line:
        group = groups[key]
        more, _ = store.history.dead.change(key, group.count, _GROWTH_SECS)
        count = 6 if wide else 5
        return (
            (fit(number(group.count), count, right=True), "strong"),
            (fit(f"+{number(more)}" if more > 0 else "", count, right=True), "warn"),
            (" ", ""),
            (fit(code_of(group), 15), "warn" if group.partial else "bad"),
            (" ", ""),
            (fit_subject(group.endpoint_subject, size.width - 2 * count - (26 if wide else 17)), ""),
            (" ", ""),
            (clock_time(group.newest_at), "dim") if wide else ("", ""),
        )

    def filter_of(key: str) -> str:
        return group_filter(groups[key])

    entries = list_entries(
        "dead", "dead-letters", groups, order, size, line_of, empty=("✓ none", "ok"), argument_of=filter_of
    )
    change = f"{growth:+,} in {about(min(secs, _GROWTH_SECS))}" if growth else "steady"
    note: Piece = (f"{total:,}, {change}", "bad" if growth > 0 else "warn") if total else ("0", "dim")
    return PanelContent(note, entries, max(len(order), 1))


def adapters(store: Store, size: PanelSize) -> PanelContent:
    """Return the adapters, those with problems first."""
    adapters = store.state.adapters
    order = sorted(adapters, key=lambda key: (adapter_rank(adapters[key]), key))

    def line_of(key: str) -> Line:
        return _adapter_line(adapters[key], size.width)

    entries = list_entries("adapter", "adapters", adapters, order, size, line_of, empty=("none configured", "dim"))
    bad = sum(adapter_state(adapter)[1] == "bad" for adapter in adapters.values())
    note: Piece = (f"✗ {bad} of {len(adapters)} failing", "bad") if bad else (f"{len(adapters)}", "dim")
    return PanelContent(note, entries, max(len(adapters), 1))


def _adapter_line(adapter: ConfiguredAdapter, width: int) -> Line:
    wide = width >= 50
    state, counts, why = adapter_state(adapter), "", adapter.problem
    if adapter.state is not None:
        counts = f"{number(adapter.state.delivered)} ok {number(adapter.state.failed)} {'failed' if wide else '✗'}"
        why = why or (adapter.state.last_error if state[1] == "ok" else adapter.state.detail)
    word, name = 14, 14 if wide else 10
    rest = f"{counts}  {clean(why)}".strip() if why else counts
    return (
        (fit(state[0], word), state[1]),
        (" ", ""),
        (fit(clean(adapter.id), name), ""),
        (" ", ""),
        (fit(rest, width - word - name - 2), "dim"),
    )

"""What the overview says of trouble: breakers that are not closed, dead letters and their growth, adapters."""

from __future__ import annotations

from relay_core.messages.dead_letter import count_dead
from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.protocol.live_state import LiveBreaker
from relay_core.text.sanitize import clean
from relay_core.text.units import about, clock_time, number, plural, time_until
from relay_tui.live.store import Store
from relay_tui.views.dead_letters.selection import code_of, group_filter
from relay_tui.views.overview.panel_content import PanelContent, PanelSize, fit_subject, list_entries
from relay_tui.views.overview.panel_grid import Entry
from relay_tui.views.states import adapter_rank, adapter_state
from relay_tui.widgets.styled_lines import Line, Piece, fit

_GROWTH_SECS = 60.0


def breakers(store: Store, size: PanelSize) -> PanelContent:
    """Say which targets are left alone, and when they are tried again."""
    found = store.state.breakers
    order = sorted(
        (key for key, one in found.items() if one.state != "CLOSED"),
        key=lambda key: (found[key].state != "OPEN", found[key].subject or key),
    )
    entries = list_entries(
        order,
        len(order),
        size,
        "breaker",
        lambda key: key in order,
        lambda key: _breaker_line(key, found[key], store.now_ms(), size.width),
        "breakers",
    )
    if not order:
        text = f"✓ all {len(found)} are closed" if found else "no target has been delivered to yet"
        entries = [Entry(((text, "ok" if found else "dim"),))]
    note: Piece = (f"✗ {len(order)} of {len(found)} not closed", "bad") if order else (f"{len(found)}", "dim")
    return PanelContent(note, entries, max(len(order), 1))


def _breaker_line(key: str, one: LiveBreaker, now: int, width: int) -> Line:
    state: Piece = ("✗ open", "bad") if one.state == "OPEN" else ("◐ half-open", "warn")
    if one.forced:
        state = ("✗ forced", "bad")
    if one.state != "OPEN":
        probe = "probing now"
    else:
        probe = "until reset" if one.forced else f"probe {time_until(one.retry_at, now)}"
    failures = plural(one.consecutive_failures, "failure") if width >= 50 else ""
    return (
        (fit(state[0], 12), state[1]),
        (fit_subject(one.subject or key, width - 26 - (13 if failures else 0)), ""),
        (fit(failures, 13, right=True), "dim") if failures else ("", ""),
        (" ", ""),
        (fit(probe, 13, right=True), "strong"),
    )


def dead_letters(store: Store, size: PanelSize) -> PanelContent:
    """Say how many dead letters there are, how their number changes, and what most of them are about."""
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

    entries = list_entries(
        order,
        len(order),
        size,
        "dead",
        lambda key: key in groups,
        line_of,
        "dead-letters",
        leads_to=lambda key: group_filter(groups[key]),
    )
    if not groups:
        entries = [Entry((("✓ none", "ok"),))]
    change = f"{growth:+,} in {about(min(secs, _GROWTH_SECS))}" if growth else "steady"
    note: Piece = (f"{total:,}, {change}", "bad" if growth > 0 else "warn") if total else ("0", "dim")
    return PanelContent(note, entries, max(len(order), 1))


def adapters(store: Store, size: PanelSize) -> PanelContent:
    """Say how the ways to and from the bus are doing, those in trouble first."""
    found = store.state.adapters
    states = {key: adapter_state(one) for key, one in found.items()}
    order = sorted(found, key=lambda key: (adapter_rank(found[key]), key))
    entries = list_entries(
        order,
        len(order),
        size,
        "adapter",
        lambda key: key in found,
        lambda key: _adapter_line(found[key], states[key], size.width),
        "adapters",
    )
    if not found:
        entries = [Entry((("none is configured", "dim"),))]
    bad = sum(1 for _, style in states.values() if style == "bad")
    note: Piece = (f"✗ {bad} of {len(found)} in trouble", "bad") if bad else (f"{len(found)}", "dim")
    return PanelContent(note, entries, max(len(found), 1))


def _adapter_line(one: ConfiguredAdapter, state: Piece, width: int) -> Line:
    wide = width >= 50
    counts = ""
    why = one.problem
    if one.state is not None:
        counts = f"{number(one.state.delivered)} ok {number(one.state.failed)} {'failed' if wide else '✗'}"
        why = why or (one.state.last_error if state[1] == "ok" else one.state.detail)
    word, name = 14, 14 if wide else 10
    rest = f"{counts}  {clean(why)}".strip() if why else counts
    return (
        (fit(state[0], word), state[1]),
        (" ", ""),
        (fit(clean(one.id), name), ""),
        (" ", ""),
        (fit(rest, width - word - name - 2), "dim"),
    )

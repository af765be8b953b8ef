"""Groups of dead letters: by code and target, largest first, and whether each grows."""

from __future__ import annotations

from relay_core.messages.dead_letter import DeadLetterGroup
from relay_core.text.bars import spark
from relay_core.text.sanitize import clean
from relay_core.text.units import ago, format_duration, number
from relay_tui.live.history import KEPT_SECS
from relay_tui.live.store import Store
from relay_tui.views.dead_letters.selection import code_of
from relay_tui.widgets.styled_lines import Piece
from relay_tui.widgets.table import Column, KeyedRows, Row

COLUMNS = (
    Column("CODE", 16),
    Column("TARGET"),
    Column("COUNT", 7, right=True),
    Column("GROWTH", 13, right=True),
    Column("LAST 5 MIN", 16, from_width=110),
    Column("NEWEST", 8, right=True),
    Column("LATEST REASON", from_width=90),
)
_TICKS = 16


def group_rows(store: Store) -> KeyedRows:
    """Return the groups as rows, each formatted when it is visible: there may be thousands."""
    groups = store.state.dead_letters

    def row(key: str) -> Row:
        group = store.state.dead_letters.get(key)
        return Row(key, _cells(store, key, group) if group is not None else ("",) * len(COLUMNS))

    return KeyedRows(sorted(groups, key=lambda key: (-groups[key].count, key)), row)


def _cells(store: Store, key: str, group: DeadLetterGroup) -> tuple[str | Piece, ...]:
    return (
        (code_of(group), "warn"),
        clean(group.endpoint_subject or group.endpoint_hash),
        (number(group.count), "strong"),
        growth(store, key, group.count),
        (_history(store, key), "accent"),
        (ago(group.newest_at, store.now_ms()), "dim"),
        (clean(group.sample_reason), "dim"),
    )


def growth(store: Store, key: str, count: int) -> Piece:
    """Return the change of a count over the history that is kept."""
    change, secs = store.history.dead.change(key, count, KEPT_SECS)
    if not change:
        return "steady", "dim"
    text = f"{abs(change):,} in {format_duration(max(secs, 1))}"
    return (f"▲ {text}", "bad") if change > 0 else (f"▼ {text}", "ok")


def _history(store: Store, key: str) -> str:
    """Return the last minutes as a sparkline of the count above its minimum."""
    counts = store.history.dead.series(key, KEPT_SECS)
    step = max(len(counts) // _TICKS, 1)
    sampled = counts[::-1][::step][:_TICKS][::-1]
    least = min(sampled, default=0)
    return spark([count - least for count in sampled], _TICKS)

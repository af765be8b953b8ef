"""Groups of dead letters: by code and target, largest first, and whether each grows."""

from __future__ import annotations

from relay_core.deadletters import DeadLetterGroup
from relay_tui.history import KEPT_SECS
from relay_tui.lines import Piece
from relay_tui.safe import clean
from relay_tui.store import Store
from relay_tui.table import Column, Row
from relay_tui.views.dead_letters.choice import code_of
from relay_tui.words import ago, lasting, number, spark

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


class GroupRows:
    """Groups as rows: each is written only when it is looked at, for there may be thousands."""

    def __init__(self, store: Store) -> None:
        groups = store.state.dead_letters
        self._store = store
        self._keys = sorted(groups, key=lambda key: (-groups[key].count, key))
        self._at: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> Row:
        key = self._keys[at]
        group = self._store.state.dead_letters.get(key)
        return Row(key, self._cells(key, group) if group is not None else ("",) * len(COLUMNS))

    def find(self, key: str) -> int | None:
        """Return where a key is."""
        if self._at is None:
            self._at = {one: at for at, one in enumerate(self._keys)}
        return self._at.get(key)

    def _cells(self, key: str, group: DeadLetterGroup) -> tuple[str | Piece, ...]:
        return (
            (code_of(group), "warn"),
            clean(group.endpoint_subject or group.endpoint_hash),
            (number(group.count), "strong"),
            growth(self._store, key, group.count),
            (_history(self._store, key), "accent"),
            (ago(group.newest_at, self._store.now_ms()), "dim"),
            (clean(group.sample_reason), "dim"),
        )


def growth(store: Store, key: str, count: int) -> Piece:
    """Return by how much a group has changed in the time that it has been watched."""
    change, secs = store.history.dead.change(key, count, KEPT_SECS)
    if not change:
        return "steady", "dim"
    text = f"{abs(change):,} in {lasting(max(secs, 1))}"
    return (f"▲ {text}", "bad") if change > 0 else (f"▼ {text}", "ok")


def _history(store: Store, key: str) -> str:
    """Return the last minutes as small bars: how far above its least the count stood."""
    counts = store.history.dead.series(key, KEPT_SECS)
    step = max(len(counts) // _TICKS, 1)
    sampled = counts[::-1][::step][:_TICKS][::-1]
    least = min(sampled, default=0)
    return spark([one - least for one in sampled], _TICKS)

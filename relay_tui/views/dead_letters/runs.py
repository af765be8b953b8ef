"""Replays under way, as the supervisor tells of them: they go on without the dashboard, and are here when it is back.

Runs that have ended are shown for a quarter of an hour after they were planned, the newest few. A supervisor that was
killed knows nothing of its runs afterwards: one that was seen under way and is not there any more was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay_core.ids import is_ulid, ulid_ms
from relay_core.replay_plan import ReplayOutcome
from relay_tui.lines import Piece
from relay_tui.safe import clean
from relay_tui.table import Cell, Column, Row
from relay_tui.words import bar, plural

COLUMNS = (
    Column("REPLAY", 11),
    Column("PROGRESS", 12),
    Column("DONE", 15, right=True),
    Column("DELIVERED", 9, right=True, from_width=90),
    Column("FAILED", 6, right=True),
    Column("SKIPPED", 7, right=True, from_width=90),
    Column("WHY"),
)
UNDER_WAY = ("running", "waiting", "paused")
_STATES: Mapping[str, Piece] = {
    "running": ("▶ running", "ok"),
    "waiting": ("◐ waiting", "warn"),
    "paused": ("❚❚ paused", "warn"),
    "finished": ("✓ finished", "ok"),
    "cancelled": ("○ cancelled", "dim"),
    "stopped": ("✗ stopped", "bad"),
}
_ENDED_SHOWN = 2
_ENDED_MS = 900_000
_BAR = 12


def run_rows(replays: Mapping[str, ReplayOutcome], now_ms: int) -> list[Row]:
    """Return what is under way, and what has ended lately, newest first."""
    ended = sorted(
        (key for key, one in replays.items() if one.state not in UNDER_WAY and _is_recent(key, now_ms)),
        reverse=True,
    )
    return [Row(key, _cells(replays[key])) for key in (*under_way(replays), *ended[:_ENDED_SHOWN])]


def under_way(replays: Mapping[str, ReplayOutcome]) -> list[str]:
    """Return the plans that are being carried out, newest first."""
    return sorted((key for key, one in replays.items() if one.state in UNDER_WAY), reverse=True)


def interrupted(seen: Mapping[str, ReplayOutcome], now: Mapping[str, ReplayOutcome]) -> str | None:
    """Return in words which replay, of those that were under way, is not there any more."""
    lost = sorted(set(seen) - set(now))
    if not lost:
        return None
    one = seen[lost[-1]]
    return f"a replay of {one.total:,} was interrupted at {_done(one):,}: P plans the rest"


def run_words(outcome: ReplayOutcome) -> list[str]:
    """Return how a run stands, for a question about it."""
    left = outcome.total - _done(outcome)
    done = f"{outcome.delivered:,} delivered, {outcome.failed:,} failed, {outcome.skipped:,} skipped"
    return [f"{plural(outcome.total, 'message')}: {done}, {left:,} to go."]


def _cells(outcome: ReplayOutcome) -> tuple[Cell, ...]:
    done = _done(outcome)
    return (
        _STATES.get(outcome.state, (clean(outcome.state), "")),
        (bar(done / outcome.total if outcome.total else 1.0, _BAR), "accent"),
        f"{done:,} of {outcome.total:,}",
        (f"{outcome.delivered:,}", "ok" if outcome.delivered else "dim"),
        (f"{outcome.failed:,}", "bad" if outcome.failed else "dim"),
        (f"{outcome.skipped:,}", "dim"),
        clean(outcome.detail or ", ".join(f"{count:,} {verdict}" for verdict, count in outcome.skips.items())),
    )


def _done(outcome: ReplayOutcome) -> int:
    return outcome.delivered + outcome.failed + outcome.skipped


def _is_recent(run: str, now_ms: int) -> bool:
    return is_ulid(run) and now_ms - ulid_ms(run) < _ENDED_MS

"""Replays, as the supervisor reports them: they run without the dashboard.

The newest ended replays are shown for a quarter of an hour after they were planned. A supervisor that was killed does
not know its replays after a restart: a running one that is no longer reported was interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay_core.messages.ids import is_ulid, ulid_ms
from relay_core.messages.replay_plan import ReplayOutcome
from relay_core.text.bars import bar
from relay_core.text.sanitize import clean
from relay_core.text.units import plural
from relay_tui.widgets.styled_lines import Piece
from relay_tui.widgets.table import Cell, Column, Row

COLUMNS = (
    Column("REPLAY", 11),
    Column("PROGRESS", 12),
    Column("DONE", 15, right=True),
    Column("DELIVERED", 9, right=True, from_width=90),
    Column("FAILED", 6, right=True),
    Column("SKIPPED", 7, right=True, from_width=90),
    Column("WHY"),
)
ACTIVE = ("running", "waiting", "paused")
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
    """Return the running replays, and those that have ended recently, newest first."""
    ended = sorted(
        (key for key, outcome in replays.items() if outcome.state not in ACTIVE and _is_recent(key, now_ms)),
        reverse=True,
    )
    return [Row(key, _cells(replays[key])) for key in (*active_replays(replays), *ended[:_ENDED_SHOWN])]


def active_replays(replays: Mapping[str, ReplayOutcome]) -> list[str]:
    """Return the plans that are being replayed, newest first."""
    return sorted((key for key, outcome in replays.items() if outcome.state in ACTIVE), reverse=True)


def interrupted(seen: Mapping[str, ReplayOutcome], now: Mapping[str, ReplayOutcome]) -> str | None:
    """Return a notice about a replay that was running and is no longer reported."""
    lost = sorted(set(seen) - set(now))
    if not lost:
        return None
    replay = seen[lost[-1]]
    return f"a replay of {replay.total:,} was interrupted at {_done(replay):,}: P plans the rest"


def run_words(outcome: ReplayOutcome) -> list[str]:
    """Return the progress of a replay for a confirmation."""
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

"""A day of random events, and how long each state lasted in it, by walking through it one event after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from spark.days import Day

Row = dict[str, Any]

_SLOT_MS = 600_000
"""So wide that many events fall into one millisecond."""


@dataclass
class Spell:
    """An event, and the time that its state lasted."""

    row: Row
    before: str | None
    repeated: bool
    ms: int = 0
    lasts: bool = False


def random_day(rng: Random, day: Day, kind: str, key: str, statuses: Sequence[str], count: int) -> list[Row]:
    """Return events in no order: some from before midnight, some after the end, some twice, and restarts of the bus."""
    first, last = day.start_ms - 2 * _SLOT_MS, day.until_ms + 2 * _SLOT_MS
    rows: list[Row] = []
    for _ in range(count):
        time, who, status = rng.randrange(first, last, _SLOT_MS), rng.choice("abcde"), rng.choice(statuses)
        detail = rng.choice((None, "one", "two"))
        numbers = {"depth": rng.randrange(1, 200), "limit": 100} if kind == "pressure" else {}
        rows.append({"time": time, "kind": kind, key: who, "subject": f"s.{who}", "status": status, "detail": detail})
        rows[-1] |= numbers
    rows += [
        {"time": rng.randrange(first, last, _SLOT_MS) + rng.choice((0, 1)), "kind": "bus", "status": status}
        for status in ("started", "stopped", "paused") * 4
    ]
    rows += rng.sample(rows, len(rows) // 5)
    rng.shuffle(rows)
    return rows


def walk(rows: Sequence[Row], day: Day, kind: str, key: str, statuses: Sequence[str]) -> list[Spell]:
    """Return what intervals.states says of these events, told by walking through them."""
    lasting: dict[str, Spell] = {}
    told: list[Spell] = []
    newest: dict[str, Row] = {}

    def end(spells: Iterator[Spell], time: int) -> None:
        for spell in spells:
            spell.ms = max(0, time - max(spell.row["time"], day.start_ms))

    for row in sorted((row for row in rows if row["time"] < day.until_ms), key=lambda row: _order(row, statuses)):
        if row["kind"] == "bus" and row["status"] in ("started", "stopped"):
            end(iter(lasting.values()), row["time"])
            lasting.clear()
        elif row["kind"] == kind and row["status"] in statuses:
            who, old = row[key], lasting.get(row[key])
            if old is not None:
                end(iter((old,)), row["time"])
            latest = newest.get(who, {"time": None})
            repeated = latest["time"] == row["time"] and latest["status"] == row["status"]
            lasting[who] = Spell(row, old.row["status"] if old is not None else None, repeated)
            newest[who] = row
            told.append(lasting[who])
    end(iter(lasting.values()), day.until_ms)
    for spell in lasting.values():
        spell.lasts = True
    return told


def _order(row: Row, statuses: Sequence[str]) -> tuple[Any, ...]:
    if row["kind"] == "bus":
        return row["time"], -1 if row["status"] == "started" else len(statuses)
    rank = statuses.index(row["status"]) if row["status"] in statuses else 0
    return row["time"], rank, row.get("detail") or "", row.get("depth") or 0

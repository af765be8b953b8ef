"""What a day hands on to the next."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.days import DAY_MS, Day
from spark.events.schema import EVENT_SCHEMA
from spark.tables.adapters import STATUSES as ADAPTER
from spark.tables.adapters import adapters
from spark.tables.breakers import STATUSES as BREAKER
from spark.tables.breakers import breakers
from spark.tables.carry_over import carry_over
from spark.tables.dead_letters import dead_letters
from spark.tables.pressure import STATUSES as PRESSURE
from spark.tables.pressure import pressure
from tests.spark.events import DATE, DAY, START, at, events
from tests.spark.replay import random_day

DAYS = [Day.of(DATE + timedelta(days=number), 2**53) for number in range(4)]
STEPS = "adapter string, step string, us long, messages long"


def state(kind: str, whose: str, time: int, status: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "adapter" if kind == "adapter" else "target": whose, "time": time, "status": status} | more


def letter(kind: str, message: str, time: int, status: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "target": "t", "messageId": message, "time": time, "status": status} | more


KEPT = [
    letter("dead_letter", "stands", at(1), "failed", code="timeout", subject="s", detail="why", bytes=7),
    letter("dead_letter", "died-again", at(3), "no_subscriber", code="no_match"),
    letter("dead_letter", "long-ago", at(-100), "failed"),
    state("breaker", "open", at(9), "OPEN", subject="s.open", detail="CLOSED → OPEN: x"),
    state("breaker", "half", at(9, secs=5), "HALF_OPEN"),
    state("pressure", "goes-on", at(9, secs=3), "critical", depth=990, limit=1000),
    state("pressure", "begun-again", at(9, secs=3), "warning", depth=800, limit=1000),
    state("adapter", "fine", at(9), "connected"),
    state("adapter", "quiet", at(7), "disconnected", detail="no route"),
    state("adapter", "leaving", at(9, secs=2), "stopping", detail="removed"),
]
GONE = [
    *(letter("dead_letter", f"gone-{status}", at(1), "failed") for status in ("new", "purged", "replaced")),
    letter("replayed", "gone-new", at(2), "new"),
    letter("dead_letter", "gone-purged", at(2), "purged"),
    letter("dead_letter", "gone-replaced", at(2), "replaced"),
    letter("dead_letter", "died-again", at(1), "failed", code="timeout"),
    letter("replayed", "died-again", at(2), "new"),
    letter("dead_letter", "aside", at(2), "aside"),
    letter("dead_letter", "tomorrow", at(24), "failed"),
    {"kind": "dead_letter", "target": "t", "status": "failed"},
    {"kind": "bus", "time": at(5), "status": "stopped"},
    {"kind": "bus", "time": at(6), "status": "started"},
    state("breaker", "before-the-restart", at(4), "OPEN"),
    state("pressure", "before-the-restart", at(4), "warning", depth=1, limit=2),
    state("adapter", "before-the-restart", at(5), "stopping", detail="the bus is closing"),
    state("breaker", "half", at(9), "OPEN"),
    state("breaker", "closed", at(9), "OPEN"),
    state("breaker", "closed", at(10), "CLOSED"),
    state("pressure", "goes-on", at(9), "warning", depth=800, limit=1000),
    state("pressure", "goes-on", at(9, secs=9), "critical", depth=970, limit=1000),
    state("pressure", "begun-again", at(9), "warning", depth=900, limit=1000),
    state("pressure", "begun-again", at(9, secs=2), "normal", depth=950, limit=1000),
    state("pressure", "normal", at(9), "normal", depth=950, limit=1000),
    state("adapter", "fine", at(8), "error"),
    state("adapter", "fine", at(10), "stopping", detail="replaced"),
    state("adapter", "fine", at(11), "pondering"),
    state("adapter", "leaving", at(9), "connected"),
    state("adapter", "removed", at(9), "connected"),
    state("adapter", "removed", at(10), "removed"),
    {"kind": "job", "code": "nightly", "time": at(9), "status": "started"},
    {"kind": "failed", "target": "t", "messageId": "stands", "time": at(1)},
]


def test_what_is_open_at_the_end_is_carried_as_it_is_and_nothing_else(spark: SparkSession) -> None:
    # In no order, and each line twice.
    rows = Random(1).sample([*KEPT, *GONE] * 2, 2 * len(KEPT + GONE))
    kept = carry_over(events(spark, *rows), DAY)
    assert kept.columns == EVENT_SCHEMA.fieldNames()
    assertDataFrameEqual(kept, events(spark, *KEPT))


def test_days_without_events_hand_on_what_they_were_handed(spark: SparkSession) -> None:
    handed = events(spark, *KEPT).collect()
    for day in DAYS[1:]:
        kept = carry_over(spark.createDataFrame(handed, EVENT_SCHEMA), day).collect()
        assertDataFrameEqual(kept, handed)
        handed = kept
    assertDataFrameEqual(carry_over(events(spark), DAY), [])


def test_a_bus_that_starts_anew_forgets_states_but_not_letters(spark: SparkSession) -> None:
    rows = [*KEPT, {"kind": "bus", "time": DAYS[1].start_ms, "status": "started"}]
    assertDataFrameEqual(carry_over(events(spark, *rows), DAYS[1]), events(spark, *KEPT[:3]))


def test_a_day_with_what_was_carried_is_told_as_with_all_that_ever_happened(spark: SparkSession) -> None:
    rng, days = Random(5), Day(DATE, START + 3 * DAY_MS)
    rows = [
        *random_day(rng, days, "breaker", "target", BREAKER, 300),
        *random_day(rng, days, "pressure", "target", PRESSURE, 300),
        *random_day(rng, days, "adapter", "adapter", ADAPTER, 300),
        *random_letters(rng, days, 300),
    ]
    # A restart in the evening would leave little to carry.
    rows = [row for row in rows if row["kind"] != "bus" or (row["time"] - START) % DAY_MS < DAY_MS / 2]
    kept: list[Any] = []

    def incidents(day: Day) -> DataFrame:
        today = (row for row in rows if day.start_ms <= row["time"] < day.until_ms)
        return events(spark, *today).union(spark.createDataFrame(kept, EVENT_SCHEMA))

    first, second, third = DAYS[:3]
    for day in (first, second):
        kept = carry_over(incidents(day), day).collect()
        assert {row["kind"] for row in kept} == {"breaker", "pressure", "adapter", "dead_letter"}
    history = events(spark, *(row for row in rows if START <= row["time"] < third.until_ms))
    for told, whole in zip(tables(spark, incidents(third), third), tables(spark, history, third), strict=True):
        assertDataFrameEqual(told, whole)


def tables(spark: SparkSession, incidents: DataFrame, day: Day) -> list[DataFrame]:
    return [
        breakers(incidents, day),
        # Of the days before, only the episode that goes on is this day's.
        pressure(incidents, day).select("target", "aboveSecs", "aboveAtEnd"),
        adapters(incidents, spark.createDataFrame([], STEPS), day),
        dead_letters(incidents, day),
    ]


def random_letters(rng: Random, days: Day, count: int) -> list[dict[str, Any]]:
    rows = []
    for _ in range(count):
        message, status = rng.randrange(40), rng.choice(("failed", "failed", "purged", "replaced", "new"))
        time = rng.randrange(days.start_ms, days.until_ms, 60_000)
        kind = "replayed" if status == "new" else "dead_letter"
        rows.append(letter(kind, str(message), time, status, code=f"code-{message % 3}", subject="s"))
    return rows + rng.sample(rows, count // 5)

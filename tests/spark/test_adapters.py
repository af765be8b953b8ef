"""Adapters: what they got through, and their time down."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from relay_core import RelayCore
from relay_core.messages.operator_views import STATE_NAMES
from relay_core.testing import FakeClock
from spark.days import Day
from spark.tables.adapters import STATUSES, adapters
from tests.kit.adapters import SampleAdapter
from tests.kit.events import EventReader
from tests.spark.events import DAY, START, at, events
from tests.spark.replay import Spell, random_day, walk

TODAY = Day.of(DAY.date, at(20))
DOWN = {"starting", "disconnected", "error"}

STEPS = "target string, targetKind string, name string, adapter string, step string, us long, messages long"


def state(adapter: str, time: int, status: str, detail: str | None = None) -> dict[str, Any]:
    return {"kind": "adapter", "adapter": adapter, "time": time, "status": status, "detail": detail}


def delivery(kind: str, adapter: str | None, target_kind: str = "adapter") -> dict[str, Any]:
    return {"kind": kind, "adapter": adapter, "targetKind": target_kind, "target": "t", "time": at(9)}


def steps(spark: SparkSession, *rows: tuple[str | None, str, int, int]) -> DataFrame:
    """Return a histogram from adapter, step, µs and messages."""
    return spark.createDataFrame([("t", "adapter", "n", *row) for row in rows], STEPS)


def line(
    adapter: str,
    down: float = 0,
    outages: int = 0,
    at_end: str | None = None,
    detail: str | None = None,
    *,
    counts: tuple[int, int, int] = (0, 0, 0),
    share: float | None = None,
    p50: int | None = None,
    p95: int | None = None,
) -> Row:
    return Row(
        adapter=adapter,
        handled=counts[0],
        failed=counts[1],
        refused=counts[2],
        successShare=share,
        p50Us=p50,
        p95Us=p95,
        downSecs=down,
        outages=outages,
        stateAtEnd=at_end,
        lastDetail=detail,
    )


def test_a_day_without_events_has_no_adapters(spark: SparkSession) -> None:
    table = adapters(events(spark), steps(spark), DAY)
    assert table.columns == list(line("a").asDict())
    assertDataFrameEqual(table, [])


def test_what_they_got_through_and_how_long_they_were_down(spark: SparkSession) -> None:
    rows = [
        state("flaps", at(1), "connected"),
        state("flaps", at(2), "disconnected", "no route"),
        state("flaps", at(2, secs=5), "error", "HTTP 502"),  # not another outage
        state("flaps", at(2, secs=9), "connected"),
        state("flaps", at(3), "error"),
        state("flaps", at(3), "error"),  # the line stands twice
        state("flaps", at(3, secs=1), "connected", "back"),
        state("over-midnight", at(-1), "error", "gone"),
        state("over-midnight", at(0, secs=30), "connected"),
        state("still-down", at(23), "disconnected", "no route"),
        state("quiet", at(-300), "connected"),
        state("removed", at(1), "connected"),
        state("removed", at(2), "stopping", "removed"),
        state("removed", at(2, secs=1), "removed"),
        state("disabled-while-down", at(1), "error"),
        state("disabled-while-down", at(1, secs=4), "stopping", "removed"),
        state("disabled-while-down", at(1, secs=5), "removed"),
        state("reloaded", at(1), "connected"),
        state("reloaded", at(2), "connected"),
        state("reloaded", at(2, secs=1), "stopping", "replaced"),  # the old one, after the new one has connected
        state("reloaded", at(3), "error"),
        state("reloaded", at(3, secs=2), "connected"),
        state("out-of-order", at(3), "connected"),
        state("out-of-order", at(1), "connected"),
        state("out-of-order", at(2), "starting"),
        state("unknown", at(1), "error"),
        state("unknown", at(1, secs=1), "pondering"),
        state("unknown", at(1, secs=3), "connected"),
        delivery("failed", "flaps"),
        delivery("refused", "flaps"),
        delivery("refused", "flaps"),
        delivery("failed", "only-failed"),
        delivery("failed", "flaps", "endpoint"),
        delivery("failed", None),
        delivery("handled", "flaps"),
    ]
    # Below 9 of 10 messages took 100 µs to handle, 1 of 10 took 5 ms.
    histogram = steps(
        spark,
        ("flaps", "handle", 100, 6),
        ("flaps", "handle", 100, 3),
        ("flaps", "handle", 5000, 1),
        ("flaps", "queue", 70, 10),
        ("flaps", "total", 900, 10),
        ("only-handled", "total", 900, 2),
        (None, "total", 900, 5),
    )
    assertDataFrameEqual(
        adapters(events(spark, *rows), histogram, DAY),
        [
            line("flaps", 10, 2, "connected", "back", counts=(10, 1, 2), share=10 / 11, p50=100, p95=5000),
            line("over-midnight", 30, 0, "connected"),
            line("still-down", 3600, 0, "disconnected", "no route"),
            line("quiet", 0, 0, "connected"),
            line("removed", 0, 0, "removed"),
            line("disabled-while-down", 4, 0, "removed"),
            line("reloaded", 2, 1, "connected"),
            line("out-of-order", 3600, 1, "connected"),
            line("unknown", 3, 0, "connected"),
            line("only-failed", counts=(0, 1, 0), share=0.0),
            line("only-handled", counts=(2, 0, 0), share=1.0),
        ],
    )


async def test_the_bus_tells_of_reloads_and_removals_as_this_table_reads_them(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, clock=clock) as relay:
        await relay.add_adapter(SampleAdapter("chat", ["relay.human.chat.>"]))
        await relay.replace_adapter(SampleAdapter("chat", ["relay.human.chat.>"]))
        await relay.remove_adapter("chat")
    segments = sorted((data_dir / "events").rglob("*.jsonl"))
    told = [event for path in segments for event in EventReader(path) if event.kind == "adapter"]
    assert [(event.status, event.detail) for event in told] == [
        ("connected", None),
        ("connected", None),
        ("stopping", "replaced"),
        ("stopping", "removed"),
        ("removed", None),
    ]
    assert {event.status for event in told} <= set(STATUSES)
    assert set(STATUSES) == {*STATE_NAMES, "removed"}


def test_a_random_day_with_restarts_is_told_as_by_walking_through_it(spark: SparkSession) -> None:
    rows = random_day(Random(3), TODAY, "adapter", "adapter", (*STATUSES, "pondering"), 400)
    spells = walk(rows, TODAY, "adapter", "adapter", STATUSES)
    assertDataFrameEqual(
        adapters(events(spark, *rows), steps(spark), TODAY),
        [expected([spell for spell in spells if spell.row["adapter"] == adapter]) for adapter in "abcde"],
    )


def expected(spells: list[Spell]) -> Row:
    down = [spell for spell in spells if spell.row["status"] in DOWN]
    outages = sum(spell.before == "connected" and spell.row["time"] >= START for spell in down)
    assert outages, "the case is too small"
    at_end = next((spell.row["status"] for spell in spells if spell.lasts), None)
    last = spells[-1].row
    return line(last["adapter"], sum(spell.ms for spell in down) / 1000, outages, at_end, last["detail"])

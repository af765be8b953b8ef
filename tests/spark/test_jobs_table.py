"""Jobs: runs, outcomes and durations."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.tables.jobs import jobs
from tests.spark.events import at, events


def job(
    name: str | None, time: int, status: str | None, us: int | None = None, detail: str | None = None
) -> dict[str, Any]:
    return {"kind": "job", "code": name, "time": time, "status": status, "handleUs": us, "detail": detail}


def line(
    name: str,
    runs: int,
    outcomes: tuple[int, int, int, int] = (0, 0, 0, 0),
    p50: int | None = None,
    longest: int | None = None,
    last: str | None = None,
    detail: str | None = None,
) -> Row:
    ok, failed, timed_out, cancelled = outcomes
    return Row(
        job=name,
        runs=runs,
        ok=ok,
        failed=failed,
        timedOut=timed_out,
        cancelled=cancelled,
        p50Us=p50,
        maxUs=longest,
        lastOutcome=last,
        lastDetail=detail,
    )


def test_a_day_without_events_has_no_jobs(spark: SparkSession) -> None:
    table = jobs(events(spark))
    assert table.columns == list(line("a", 0).asDict())
    assertDataFrameEqual(table, [])


def test_a_run_is_a_start_an_end_or_both(spark: SparkSession) -> None:
    rows = [
        *(job("every", at(hour), "started") for hour in range(1, 6)),
        job("every", at(1, secs=1), "ok", 100),
        job("every", at(2, secs=1), "timed_out", 900, "took longer than 1 s"),
        job("every", at(3, secs=1), "cancelled", 50),
        job("every", at(5, secs=1), "failed", 200, "OSError: disk"),
        job("every", at(4, secs=1), "ok", 300, "rows=7"),
        job("doubled", at(1), "started"),
        job("doubled", at(1), "started"),
        job("doubled", at(2), "ok", 7),
        job("doubled", at(2), "ok", 7),
        job("over-midnight", at(0, secs=3), "ok", 9_000_000),
        job("over-midnight", at(23), "started"),
        job("killed", at(1), "started"),
        job("killed", at(2), "started"),
        job("killed", at(2, secs=1), "ok", 5),
        job("at-once", at(1), "ok", 0),
        job("at-once", at(1), "started"),
        job("two-ways", at(1), "ok", 10),  # the median is one that occurred
        job("two-ways", at(2), "ok", 20),
        job("clock", at(1, secs=9), "started"),
        job("clock", at(1, secs=2), "ok", 4),  # the clock was put back meanwhile: start and end are not seen as one
        job("unknown", at(1), "started"),
        job("unknown", at(1, secs=1), "postponed"),
        job("unknown", at(1, secs=2), None),
        job("unknown", at(1, secs=3), "failed"),
        job(None, at(1), "ok"),
    ]
    assertDataFrameEqual(
        jobs(events(spark, *rows)),
        [
            line("every", 5, (2, 1, 1, 1), 200, 900, "failed", "OSError: disk"),
            line("doubled", 1, (1, 0, 0, 0), 7, 7, "ok"),
            line("over-midnight", 2, (1, 0, 0, 0), 9_000_000, 9_000_000, "ok"),
            line("killed", 2, (1, 0, 0, 0), 5, 5, "ok"),
            line("at-once", 1, (1, 0, 0, 0), 0, 0, "ok"),
            line("two-ways", 2, (2, 0, 0, 0), 10, 20, "ok"),
            line("clock", 2, (1, 0, 0, 0), 4, 4, "ok"),
            line("unknown", 1, (0, 1, 0, 0), None, None, "failed"),
        ],
    )

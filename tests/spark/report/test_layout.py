"""The report and what it is made from hold together: tables, metrics, and those who read report.json."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from relay_core.protocol.report import NightlyReport, read_nightly
from spark.events.sources import incidents, steps, traffic
from spark.report.headline import HEADLINE, METRICS, metric_of
from spark.report.inputs import ReportInputs
from spark.report.layout import LAYOUT
from spark.report.plots import draw
from spark.tables import TABLES, Sources
from spark.tables import daily as numbers
from spark.tables.anomalies import anomalies
from spark.tables.senders import Limits
from tests.spark.events import DAY, events
from tests.spark.report.days import DAYS, a_day


def test_every_table_that_is_made_is_shown_with_columns_that_it_has(spark: SparkSession) -> None:
    """Only plans are looked at: nothing runs."""
    none = events(spark)
    sources = Sources(DAY, Limits(), none, traffic(none, DAY), steps(none), incidents(none))
    frames = {name: make(sources) for name, make in TABLES.items()}
    today = spark.createDataFrame([], "metric string, key string, value double")
    history = spark.createDataFrame([], "date date, metric string, key string, value double")
    frames["anomalies"] = anomalies(today, history, DAY)
    assert {layout.name for layout in LAYOUT} == set(frames) - {"hours"}
    for layout in LAYOUT:
        wanted = {column.name for column in layout.columns} | {*layout.descending, *layout.ascending}
        assert wanted <= set(frames[layout.name].columns), layout.name
    assert set(frames["hours"].columns) >= {"hour", "messages", "refused", "deadLetters"}


def test_every_metric_of_a_day_has_a_name_and_a_unit_here() -> None:
    endings = {"Us": "us", "Secs": "secs", "ytes": "bytes"}
    for metric in numbers.METRICS:
        read = metric_of(metric.name)
        assert read in METRICS.values(), metric.name
        base = metric.name.partition("By")[0]
        assert read.unit == next((unit for end, unit in endings.items() if base.endswith(end)), "count"), metric.name
    assert set(METRICS) <= {metric.name for metric in numbers.METRICS}
    assert set(HEADLINE) <= set(METRICS)


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_a_report_is_read_as_it_was_written(day: Callable[[], NightlyReport]) -> None:
    report = day()
    assert read_nightly(json.loads(report.to_json())) == report


def test_a_report_of_another_version_or_schema_is_not_read() -> None:
    document = json.loads(DAYS["rich"]().to_json())
    assert read_nightly({**document, "version": 2}) is None
    assert read_nightly({**document, "tables": []}) is None
    assert read_nightly({**document, "newer": 1, "data": {"other": True}}) is not None


def test_a_latency_without_a_total_is_that_of_the_slowest_target() -> None:
    rows = [{"metric": "p95TotalUs", "key": key, "value": value} for key, value in (("relay.a", 5.0), ("relay.b", 9.0))]
    history = [{**row, "date": "2026-03-13"} for row in rows[:1]] + [
        {"date": "2026-03-12", "metric": "messages", "key": "", "value": 1.0}
    ]
    seen = ReportInputs(a_day(), {}, rows, history)
    assert (seen.today("p95TotalUs"), seen.usual("p95TotalUs")) == (9.0, 5.0)
    assert seen.before("p95TotalUs")[-3:] == [None, None, 5.0]
    assert seen.before("messages")[-3:] == [None, 1.0, 0.0]
    assert [plot.name for plot in draw(seen)] == ["messagesByDay"]

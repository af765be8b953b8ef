"""A report is built from plain rows: what is in report.json, and that it stays small and readable whatever comes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from relay_core.protocol.report import NightlyReport
from spark.report.build import MOST_BYTES
from spark.report.layout import LAYOUT
from tests.spark.report.days import (
    DAYS,
    HOSTILE,
    RICH_TABLES,
    a_day,
    a_day_of_one_event,
    a_first_day,
    a_rich_day,
    an_empty_day,
    an_unfinished_day,
    before,
    made,
    numbers,
    table,
)


def document(report: NightlyReport) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return found


@pytest.mark.parametrize("day", DAYS.values(), ids=DAYS.keys())
def test_the_first_line_is_the_head_and_the_whole_is_small(day: Callable[[], NightlyReport]) -> None:
    written = day().to_json()
    assert len(written) < MOST_BYTES
    whole, head = json.loads(written), json.loads(written.split(b"\n")[0].rstrip(b",") + b"}")
    assert list(head) == [
        "version",
        "date",
        "complete",
        "until",
        "madeAt",
        "tookSecs",
        "events",
        "ingestedAt",
        "attentionCount",
    ]
    assert list(whole) == [*head, "attention", "headline", "plots", "tables", "data"]
    assert head["madeAt"] == "2026-03-15T02:00:00Z"
    assert head["attentionCount"] == sum(finding["level"] in ("bad", "warn") for finding in whole["attention"])


def test_the_headline_compares_with_the_usual_day() -> None:
    report = made({}, numbers(messages=150, refusals=0), before(messages=[10, 100, 100, 110], p95TotalUs=[500] * 4), {})
    by_name = {number.name: number for number in report.headline}
    messages, refused, p95 = by_name["messages"], by_name["refusals"], by_name["p95TotalUs"]
    assert (messages.value, messages.usual, messages.change) == (150, 100, 0.5)
    assert messages.trend == [None] * 10 + [10, 100, 100, 110, 150]
    assert (refused.value, refused.usual, refused.change) == (0, 0, None)
    assert (p95.value, p95.usual, p95.change) == (None, 500, None)


def test_a_day_without_history_compares_nothing() -> None:
    report = a_first_day()
    assert {(number.usual, number.change) for number in report.headline} == {(None, None)}
    assert all(number.trend == [] for number in report.headline)
    assert not [plot for plot in report.plots if plot.form == "days"]


def test_counts_of_a_day_that_is_not_over_are_not_compared() -> None:
    report = an_unfinished_day()
    assert not report.complete
    assert [number.name for number in report.headline if number.change is not None] == ["p95TotalUs"]
    by_hour = next(plot for plot in report.plots if plot.name == "messagesByHour")
    assert [value is None for value in by_hour.series[0].values] == [False] * 15 + [True] * 9


def test_an_hour_that_is_just_over_is_drawn() -> None:
    report = made(RICH_TABLES, [], [], {}, a_day(hours=14))
    assert report.plots[0].series[0].values[13] is not None


def test_nothing_is_drawn_of_nothing() -> None:
    assert an_empty_day().plots == []
    (plot,) = a_day_of_one_event().plots
    assert (plot.name, plot.series[0].values) == ("messagesByHour", [0.0] * 7 + [1] + [0.0] * 16)


def test_each_plot_has_a_value_for_each_label() -> None:
    plots = a_rich_day().plots
    assert [plot.name for plot in plots] == [
        "messagesByHour",
        "refusedByHour",
        "deadLettersByHour",
        "latency",
        "messagesByDay",
        "deadLettersByDay",
    ]
    for plot in plots:
        assert all(len(series.values) == len(plot.labels) for series in plot.series)
    latency = plots[3]
    assert latency.labels[0] == "claude-code"
    assert [series.values[0] for series in latency.series] == [4_200_000, 27_300_000, 58_800_000]


def test_every_table_says_how_to_read_it() -> None:
    tables = document(a_rich_day())["tables"]
    assert list(tables) == [layout.name for layout in LAYOUT]
    for layout in LAYOUT:
        shown_table = tables[layout.name]
        assert [column["name"] for column in shown_table["columns"]] == [column.name for column in layout.columns]
        assert layout.bar is None or layout.bar in [column.name for column in layout.columns]
        row = shown_table["rows"][0]
        assert list(row)[: len(layout.columns)] == [column.name for column in layout.columns]
        assert {*layout.descending, *layout.ascending} <= set(row), layout.name
    assert tables["latency"]["rows"][0]["step"] == "end to end"
    assert tables["throughput"]["total"] == 1932
    assert [(row["metric"], row["unit"]) for row in tables["anomalies"]["rows"]] == [
        ("Refused", "count"),
        ("p95 end to end, claude-code", "us"),
    ]


def test_a_target_without_a_name_is_called_by_its_hash() -> None:
    row = RICH_TABLES["breakers"].rows[0]
    report = made({"breakers": table({**row, "name": None})}, [], [], {})
    assert report.tables["breakers"].rows[0]["name"] == "ab" * 6


def test_tables_that_are_too_large_lose_their_last_rows() -> None:
    row = {"sender": "s" * 300, "subject": "x" * 300, "code": "c" * 300, "target": "t" * 300, "refused": 1}
    many = table(*[row] * 1000, total=9000)
    report = made({"refusals": many, "throughput": many, "senders": many, "jobs": many}, [], [], {})
    assert len(report.to_json()) <= MOST_BYTES
    assert {len(shown.rows) for shown in report.tables.values()} == {42}
    assert {shown.total for shown in report.tables.values()} == {9000}


def test_what_json_cannot_hold_is_nothing_and_texts_are_cut() -> None:
    row = {"name": HOSTILE, "openings": 1, "openSecs": math.nan, "longestOpenSecs": -math.inf, "openAtEnd": True}
    (found,) = document(made({"breakers": table(row)}, numbers(messages=math.inf), [], {}))["tables"]["breakers"][
        "rows"
    ]
    assert (found["openSecs"], found["longestOpenSecs"]) == (None, None)
    assert len(found["name"]) == 300
    assert found["name"][:20] == HOSTILE[:20]

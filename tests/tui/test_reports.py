"""The reports screen: freshness, tables and bars, rows that lead to traces, making one now."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relay_core.protocol.report import NightlyReport
from relay_core.protocol.reporting import Report
from relay_tui.views.reports.layout import columns_of, freshness
from relay_tui.views.reports.nightly import Section, sections_of
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until
from tests.tui.driver import a_dashboard

TODAY = datetime.now(UTC).date()
YESTERDAY = (TODAY - timedelta(days=1)).isoformat()
ID = "01KA5QZ8W3N6T4V9Y2B7C1D0EF"


def write_report(data_dir: Path, report: Any, date: str = YESTERDAY) -> None:
    directory = data_dir / "reports" / f"date={date}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(report if isinstance(report, str) else json.dumps(report))


# The list


async def test_the_newest_report_is_fresh_or_says_how_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it was not installed
    old = (TODAY - timedelta(days=4)).isoformat()
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until("no report yet, and none can be made")
        write_report(tmp_path, {}, old)
        await tui.press("J", "R")
        await tui.until(f"{old} +▲ 3 days old")
        await tui.until("newest +▲ 3 days old")
        write_report(tmp_path, {})
        await tui.press("J", "R")
        await tui.until(f"{YESTERDAY} +✓ fresh")
        await tui.until("newest +✓ fresh")


@pytest.mark.parametrize(
    ("date", "now", "words"),
    [
        ("2026-03-01", "2026-03-02T03:00", "✓ fresh"),
        ("2026-03-01", "2026-03-01T12:00", "✓ fresh"),
        ("2026-03-01", "2026-03-03T03:59", "✓ fresh"),
        ("2026-03-01", "2026-03-03T04:00", "▲ 1 day old"),
        ("2026-03-01", "2026-03-04T04:00", "▲ 2 days old"),
        ("2026-02-31", "2026-03-04T04:00", "▲ 3 days old"),
    ],
)
def test_a_report_is_fresh_until_the_next_should_be_there(date: str, now: str, words: str) -> None:
    made = datetime(2026, 3, 1, 2, 15, tzinfo=UTC).timestamp() * 1000
    now_ms = int(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp() * 1000)
    assert freshness(Report(date=date, made_at=int(made), bytes=1), now_ms)[0] == words


# One report


async def test_a_row_leads_to_its_traces_and_the_report_is_still_open_afterwards(tmp_path: Path) -> None:
    columns = [{"name": "name", "title": "name"}, {"name": "n", "title": "messages", "unit": "count"}]
    columns.append({"name": "failed", "title": "failed", "unit": "count"})
    rows = [{"name": "relay.agent.a", "n": 90, "failed": 1}, {"name": "relay.agent.b", "n": 45, "failed": 4}]
    write_report(tmp_path, a_report(columns, rows).to_wire())
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until(YESTERDAY)
        await tui.press("enter")
        await tui.until(f"Report of {YESTERDAY} +✓ fresh")
        await tui.press("G", "k")
        await tui.until("▇ messages")
        await tui.until("relay.agent.a +90 +1 +█{24}")
        await tui.until("relay.agent.b +45 +4 +█{12}(?!█)")
        await tui.press("c")
        await tui.until("▇ failed")
        await tui.until("relay.agent.a +90 +1 +█{6}(?!█)")

        await tui.press("enter", "j", "enter")
        await tui.until("subject=relay.agent.b")
        await tui.until(lambda: tui.view.NAME == "traces")
        await tui.press("R")
        await tui.until("relay.agent.b +45")
        await tui.press("escape", "escape")
        await tui.until("FRESHNESS")


async def test_a_row_that_leads_nowhere_is_shown_whole(tmp_path: Path) -> None:
    inner = {"deep": {"er": ["x" * 300, "\x1b]0;owned\x07"]}}
    report = a_report([{"name": "name", "title": "name"}], [{"name": "one", "inner": inner}])
    write_report(tmp_path, report.to_wire())
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await tui.press("R")
        await tui.until(YESTERDAY)
        await tui.press("enter")
        await tui.until("things")
        await tui.press("G", "k", "enter", "enter")
        await tui.until("things, row 1")
        await tui.until('"deep": {')
        await tui.until(r"\\u001b\]0;owned\\u0007")
        await tui.press("escape", "escape", "escape")
        await tui.until("FRESHNESS")


# Making one


async def test_without_spark_the_screen_says_what_is_missing_and_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it was not installed
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until(r"✗ cannot run: the Spark part is not installed: run pip install 'relay-bus\[spark\]'")
        await tui.until("no report yet, and none can be made: see above")
        await tui.press("N")
        await tui.until("Make the nightly report now: the job metrics")


@pytest.mark.parametrize("enabled", [True, False])
async def test_it_says_how_to_get_a_report_and_in_full_why_there_is_none(tmp_path: Path, enabled: bool) -> None:
    error = " ".join(f"cause-{number}" for number in range(20))
    program = f"import sys; sys.exit({error!r})"
    nightly = {"enabled": enabled, "command": [sys.executable, "-c", program]}
    config = {"durability": "os", "jobs": {"metrics": nightly}}
    async with a_supervisor(tmp_path, config) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await tui.press("R")
        await tui.until("nightly +– not run yet  " + ("next run in .*, daily at" if enabled else "manual only\n"))
        await tui.until("no report yet(: the first is made at night)?; N makes one of today now")
        assert ("at night" in tui.text()) is enabled
        await tui.press("N")
        await tui.until("error +.*cause-0")
        await until(lambda: "cause-19 (details: J)" in " ".join(tui.text().split()))  # once no toast is over it


async def test_a_report_is_made_now_and_then_listed(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        f"d = pathlib.Path(os.environ['RELAY_DATA_DIR']) / 'reports' / 'date={YESTERDAY}'\n"
        "d.mkdir(parents=True); (d / 'report.json').write_text('{\"total\": 7}')"
    )
    config = {"durability": "os", "jobs": {"metrics": {"command": [sys.executable, "-c", program]}}}
    async with a_supervisor(tmp_path, config) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until("nightly +– not run yet +next run in .*daily at 02:15 UTC")
        await tui.press("N")
        await tui.until("metrics finished")
        await tui.until(f"{YESTERDAY} +✓ fresh")
        await tui.until("nightly +✓ ok +.* ago")


# Sections


def a_section(**more: Any) -> Section:
    values: dict[str, Any] = {"title": "t", "columns": ("name",), "rows": [("x",)], "links": [None], "sources": [{}]}
    return Section(**(values | more))


def test_where_there_is_little_room_the_first_column_and_the_bars_stay() -> None:
    section = a_section(columns=("name", "a", "b", "c"), rows=[("x" * 20, "1", "22", "333")])
    for width, titles in ((80, "name a b c ▇ b"), (40, "name a b ▇ b"), (35, "name b ▇ b"), (10, "name b ▇ b")):
        shown = [column.title for column in columns_of(section, 2, width) if column.from_width <= width]
        assert " ".join(shown) == titles


def a_report(columns: list[dict[str, str]], rows: list[dict[str, Any]]) -> NightlyReport:
    """Return a report with one table."""
    table = {"title": "things", "columns": columns, "rows": rows, "total": len(rows)}
    parts = {"attention": [], "headline": [], "plots": [], "tables": {"things": table}}
    return NightlyReport.model_validate({"version": 1, "date": YESTERDAY, **parts})


def table_of(report: NightlyReport) -> Section:
    return next(section for section in sections_of(report) if section.title == "things")


@pytest.mark.parametrize(("count", "shares"), [(50, [1]), (51, [])])
def test_more_than_fifty_rows_are_not_drawn(count: int, shares: list[int]) -> None:
    columns = [{"name": "name", "title": "name"}, {"name": "n", "title": "n", "unit": "count"}]
    section = table_of(a_report(columns, [{"name": "x", "n": n} for n in range(count)]))
    assert (list(section.shares), list(section.numeric)) == (shares, [1])


@pytest.mark.parametrize(
    ("row", "lead"),
    [
        ({"messageId": ID, "subject": "relay.a"}, ID),
        ({"trace_id": ID}, ID),
        ({"subject": "relay.a.b", "sender": "relay.c"}, "subject=relay.a.b"),
        ({"sender": "relay.c"}, "from=relay.c"),
        ({"name": "relay.agent.a"}, "subject=relay.agent.a"),
        ({"messageId": "no id", "subject": "relay.a; rm", "sender": 5}, None),
        ({"subject": "relay.a status=failed"}, None),
    ],
)
def test_a_row_leads_to_what_it_names(row: dict[str, Any], lead: str | None) -> None:
    assert table_of(a_report([{"name": "name", "title": "name"}], [row])).links == [lead]


@pytest.mark.parametrize(
    ("report", "says"),
    [
        pytest.param({"total": 7}, f"the report of {YESTERDAY} is not in", id="another format"),
        pytest.param('{"t": "\\ud800"}', "cannot read", id="half a character"),  # which is not JSON
    ],
)
async def test_a_report_that_cannot_be_read_is_refused(tmp_path: Path, report: Any, says: str) -> None:
    write_report(tmp_path, report)
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until(YESTERDAY)
        await tui.press("enter")
        await tui.until(says)
        await tui.until("FRESHNESS")

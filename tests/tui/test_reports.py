"""The reports screen: freshness, any shape of report as tables and bars, rows that lead to traces, making one now."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relay_core.protocol.reporting import Report
from relay_tui.views.reports.layout import columns_of, freshness
from relay_tui.views.reports.sections import MAX_COLUMNS, MAX_ROWS, MAX_SECTIONS, read_sections
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until
from tests.tui.driver import a_dashboard

TODAY = datetime.now(UTC).date()
YESTERDAY = (TODAY - timedelta(days=1)).isoformat()
ID = "01KA5QZ8W3N6T4V9Y2B7C1D0EF"
REPORT: dict[str, Any] = {
    "date": YESTERDAY,
    "messages": 1234,
    "latency": {"p50Ms": 1.25, "p99Ms": 80.5},
    "busiest": [
        {"subject": "relay.agent.a", "messages": 90, "failed": 1},
        {"subject": "relay.agent.b", "messages": 45, "failed": 4},
    ],
    "slowest": [{"messageId": ID, "tookMs": 81}],
    "senders": {"relay.agent.x": {"messages": 3}, "relay.agent.y": {"messages": 4}},
}


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
        write_report(tmp_path, REPORT, old)
        await tui.press("J", "R")
        await tui.until(f"{old} +▲ 3 days old")
        await tui.until("newest +▲ 3 days old")
        write_report(tmp_path, REPORT)
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


async def test_a_report_is_sections_of_rows_with_bars(tmp_path: Path) -> None:
    write_report(tmp_path, REPORT)
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until(YESTERDAY)
        await tui.press("enter")
        await tui.until(f"Report of {YESTERDAY} +✓ fresh")
        await tui.until("messages +1,234")
        await tui.press("j")
        await tui.until(r"p99Ms +80\.50 +█{24}")
        await tui.press("j")
        await tui.until("▇ messages")
        await tui.until("relay.agent.a +90 +1 +█{24}")
        await tui.until("relay.agent.b +45 +4 +█{12}(?!█)")
        await tui.press("c")
        await tui.until("▇ failed")
        await tui.until("relay.agent.a +90 +1 +█{6}(?!█)")
        await tui.press("escape")
        await tui.until("FRESHNESS")


async def test_a_row_leads_to_its_traces_and_the_report_is_still_open_afterwards(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint("relay.agent.b")
        sent = await client.publish("relay.agent.b", 1, sender="relay.agent.x")
        slowest = [{"messageId": sent.message_id, "tookMs": 81}]
        write_report(tmp_path, {"busiest": REPORT["busiest"], "slowest": slowest})
        async with a_dashboard(supervisor) as tui:
            await tui.press("R")
            await tui.until(YESTERDAY)
            await tui.press("enter")
            await tui.until("busiest +2")
            await tui.press("enter", "j", "enter")
            await tui.until("subject=relay.agent.b")
            await tui.until(lambda: tui.view.NAME == "traces")

            await tui.press("R")
            await tui.until("relay.agent.b +45")
            await tui.press("escape", "j")
            await tui.until(f"{sent.message_id} +81")
            await tui.press("enter", "enter")
            await tui.until(lambda: tui.view.NAME == "traces")
            await tui.until(sent.message_id)


async def test_a_row_that_leads_nowhere_is_shown_whole(tmp_path: Path) -> None:
    inner = {"deep": {"er": ["x" * 300, "\x1b]0;owned\x07"]}}
    write_report(tmp_path, {"things": [{"name": "one", "inner": inner}]})
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await tui.press("R")
        await tui.until(YESTERDAY)
        await tui.press("enter")
        await tui.until("things")
        await tui.press("enter", "enter")
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
        await tui.press("enter")
        await tui.until("total +7")


# Shapes nobody has foreseen


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = {"in": value, "list": [value]} if depth < 10 else {"in": value, "beside": {"a": {"b": {"c": 1}}}}
    return value


ODD = {
    "nothing": {},
    "empty parts": {"a": {}, "b": [], "c": None, "": "", "d": [[]], "e": [{}], "f": {"g": {}}},
    "hostile names": {"\x1b[2J": {"\u202e": [{"\x07": "\x9b31m"}]}, "[bold]x[/bold]": "[@click=app.bell]y[/]"},
    "deep": nested(200),
    "deep list": {"l": json.loads("[" * 100 + "]" * 100)},
    "wide": {"l": [{f"k{n}": n for n in range(500)}]},
    "long": {"l": [{"n": n} for n in range(5000)]},
    "many sections": {f"s{n}": [n] for n in range(1000)},
    "many facts": {f"f{n}": n for n in range(5000)},
    "mixed rows": {"l": [{"a": 1}, 2, "three", None, [4], {"b": {"c": 5}}]},
    "rows unlike each other": {"l": [{"a": 1}, {"b": 2}, {"a": "x", "c": [1]}]},
    "odd numbers": {"l": [{"n": 1e308}, {"n": -5}, {"n": "12.5"}, {"n": None}, {"n": 2**63}, {"n": 0}]},
    "text among numbers": {"l": [{"n": 1}, {"n": "many"}, {"n": True}]},
    "long texts": {"t": "x" * 1_000_000, "l": [{"t": "漢" * 10_000, "n": 1}]},
    "half a character": {"t": "\ud800", "l": [{"\udfff": "\ud800"}]},
}


@pytest.mark.parametrize("report", ODD.values(), ids=ODD.keys())
def test_any_shape_is_laid_out_within_bounds_and_safely(report: dict[str, Any]) -> None:
    sections = read_sections(report)
    assert 1 <= len(sections) <= MAX_SECTIONS + 1
    for section in sections:
        assert len(section.rows) == len(section.links) == len(section.sources) <= MAX_ROWS
        assert len(section.columns) <= MAX_COLUMNS + 1
        assert all(len(row) == len(section.columns) for row in section.rows)
        assert all(
            len(shares) == len(section.rows) and all(0 <= share <= 1 for share in shares)
            for shares in section.shares.values()
        )
        texts = [section.title, section.note, *section.columns, *(text for row in section.rows for text in row)]
        assert all(text.isprintable() and len(text) <= 400 for text in texts)


@pytest.mark.parametrize(
    ("report", "title", "note"),
    [
        (ODD["long"], "l", "3,000 more rows are left out"),
        (ODD["wide"], "l", "476 more columns are left out"),
        (ODD["many sections"], "…", "the remaining sections are left out"),
        (ODD["many facts"], "summary", "3,000 more rows are left out"),
    ],
)
def test_what_is_left_out_is_said(report: dict[str, Any], title: str, note: str) -> None:
    assert [section.note for section in read_sections(report) if section.title == title] == [note]


def test_a_column_of_numbers_is_numeric_also_if_they_are_texts() -> None:
    rows = [{"n": "10", "m": 5, "t": "5 s", "b": True}, {"n": "2.5e1", "m": None, "t": "6", "b": False}]
    (section,) = read_sections({"l": rows})
    assert [section.columns[at] for at in sorted(section.numeric)] == ["n", "m"]
    assert section.shares == {0: [0.4, 1.0], 1: [1.0, 0.0]}


def test_where_there_is_little_room_the_first_column_and_the_bars_stay() -> None:
    (section,) = read_sections({"l": [{"name": "x" * 20, "a": 1, "b": 22, "c": 333}]})
    for width, titles in ((80, "name a b c ▇ b"), (40, "name a b ▇ b"), (35, "name b ▇ b"), (10, "name b ▇ b")):
        shown = [column.title for column in columns_of(section, 2, width) if column.from_width <= width]
        assert " ".join(shown) == titles


def test_more_than_fifty_rows_are_not_drawn() -> None:
    few, many = read_sections({"few": [{"n": n} for n in range(50)], "many": [{"n": n} for n in range(51)]})
    assert (list(few.shares), list(many.shares)) == ([0], [])
    assert many.numeric == {0}


@pytest.mark.parametrize(
    ("report", "leads"),
    [
        ({"l": [{"messageId": ID, "subject": "relay.a"}]}, [ID]),
        ({"l": [{"trace_id": ID}]}, [ID]),
        ({"l": [{"subject": "relay.a.b", "sender": "relay.c"}]}, ["subject=relay.a.b"]),
        ({"l": [{"sender": "relay.c"}]}, ["from=relay.c"]),
        ({"l": [ID, "x"]}, [ID, None]),
        ({"counts": {"relay.agent.a": 1, "other": 2}}, ["subject=relay.agent.a", None]),
        ({"by sender": {"relay.agent.a": {"n": 1}}}, ["from=relay.agent.a"]),
        ({"traceId": ID, "n": 1}, [ID, None]),
        ({"l": [{"messageId": "no id", "subject": "relay.a; rm", "sender": 5}]}, [None]),
        ({"l": [{"subject": "relay.a status=failed"}]}, [None]),
    ],
)
def test_a_row_leads_to_what_it_names(report: dict[str, Any], leads: list[str | None]) -> None:
    (section,) = read_sections(report)
    assert section.links == leads


async def test_odd_reports_are_opened_and_walked_through(tmp_path: Path) -> None:
    names = ["nothing", "empty parts", "hostile names", "deep", "wide", "long texts", "half a character"]
    days = [(TODAY - timedelta(days=back)).isoformat() for back in range(1, len(names) + 1)]
    for day, name in zip(days, names, strict=True):
        write_report(tmp_path, ODD[name], day)
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=(80, 24)) as tui:
        await tui.press("R")
        await tui.until(days[0])
        for day, name in zip(days, names, strict=True):
            await tui.press("enter")
            if name == "half a character":  # which is no JSON: the supervisor cannot read it
                await tui.until("cannot read")
                break
            await tui.until(f"Report of {day}")
            await tui.press("G", "tab", "G", "v")
            assert tui.text().replace("\n", "").isprintable()
            await tui.press("escape", "escape", "escape")
            if tui.view._date is not None:  # type: ignore[attr-defined]  # there was no row to be shown
                await tui.press("escape")
            await tui.until("FRESHNESS")
            await tui.press("j")

"""``relay report list`` and ``relay report show``: fresh or not, attention first, bars and spark lines."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay_core.protocol.report import NightlyReport, read_nightly
from relay_core.protocol.reporting import Report as Listed
from relay_core.text.columns import columns
from relay_supervisor.cli.operate import report_text
from relay_supervisor.cli.operate.report_text import report_lines, table_lines
from relay_supervisor.cli.operate.reports import _state
from relay_supervisor.cli.output import Painted
from tests.kit.cli import Relay, end
from tests.spark.report.days import DAYS, RICH_TABLES, a_hostile_day, a_rich_day, an_empty_day, an_unfinished_day, made

TODAY = datetime.now(UTC).date()


def day(back: int) -> str:
    return (TODAY - timedelta(days=back)).isoformat()


def put(relay: Relay, date: str, report: bytes) -> None:
    place = relay.daemon.data_dir / "reports" / f"date={date}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "report.json").write_bytes(report)


@pytest.fixture(scope="module")
def reports(relay: Relay) -> Relay:
    """Return the command over a day that is not over, one that is, a hostile one, an empty one and two of others."""
    kinds = [an_unfinished_day(), a_rich_day(), a_hostile_day(), an_empty_day()]
    for back, report in enumerate(kinds):
        put(relay, day(back), report.to_json())
    put(relay, day(4), b'{"messages": 12345, "senders": [{"name": "relay.\\u001b[2J"}]}')
    put(relay, day(5), b'{"complete": "yes", "events": -1, "attentionCount": true,\n"x": 1}')
    return relay


# The list


def test_the_list_says_how_fresh_each_report_is_and_how_much_needs_attention(reports: Relay) -> None:
    listed, document = reports.both("report", "list")
    head, *rows = [line.split() for line in listed.out.splitlines()]
    assert head == ["DATE", "DAY", "CREATED", "EVENTS", "BYTES", "ATTENTION"]
    assert rows[0][:3] == [day(0), "so", "far"]
    assert [row[:2] for row in rows[1:]] == [[day(1), "complete"], [day(2), "complete"], [day(3), "complete"]] + [
        [day(back), "-"] for back in (4, 5)
    ]
    assert rows[1][-2:] == ["12", "findings"]
    assert "231,904" in rows[1]
    assert rows[3][-1] == "none"
    assert rows[4][-1] == rows[5][-1] == "-"
    first, second = document["reports"][0], document["reports"][4]
    assert {key: first[key] for key in ("complete", "events", "attention")} == {
        "complete": False,
        "events": 231904,
        "attention": 12,
    }
    assert not {"complete", "events", "attention"} & {*second, *document["reports"][5]}


@pytest.mark.parametrize(
    ("complete", "now", "words"),
    [
        (True, "2026-03-02T03:00", "complete"),
        (True, "2026-03-03T03:59", "complete"),
        (True, "2026-03-03T04:00", "1 d old"),
        (None, "2026-03-05T04:00", "3 d old"),
        (None, "2026-03-02T03:00", "-"),
        (False, "2026-03-05T04:00", "so far"),
    ],
)
def test_the_newest_report_says_when_it_should_have_been_followed(complete: bool | None, now: str, words: str) -> None:
    now_ms = int(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp() * 1000)
    state = _state(Listed(date="2026-03-01", made_at=0, bytes=1, complete=complete), now_ms, newest=True)
    assert (state.text if isinstance(state, Painted) else state) == words
    assert _state(Listed(date="2026-03-01", made_at=0, bytes=1, complete=True), now_ms, newest=False) == "complete"


# One report


def test_a_report_opens_with_attention_then_numbers_then_plots_then_tables(reports: Relay) -> None:
    shown_report, document = reports.both("report", "show", day(1))
    out = shown_report.out
    assert document == {"date": day(1), "report": json.loads(a_rich_day().to_json())}
    parts = [
        "Report of 2026-03-14  12 findings need attention",
        "231,904 events, created 2026-03-15 02:00:00 UTC in 14.2 s",
        "✗ The breaker of telegram is open",
        "  $ relay breakers",
        "▲ Refused: 460, usually 22",
        "Messages                   57,600  51,400    +12%  █▇▂▂██▇██▂▂████",
        "Refused by hour        ▁▁▁▁ ▁▁▁▁ ▁▁▁█ ▁▁▁▁ ▁▁▁  most 412 at 14:00",
        "HOUR   SUBJECT               SENDER                MESSAGES     SIZE  REFUSED",
        "23:00  relay.agent.worker-0  relay.agent.planner      4,400  3.8 MiB        0  " + "█" * 20,
        "… 1,932 rows: relay report show 2026-03-14 --table throughput",
        "telegram         3  2 h 10 min",
    ]
    assert [part for part in parts if part not in out] == []
    places = [out.index(part) for part in parts]
    assert places == sorted(places)
    assert "\x1b" not in out


def test_a_day_that_is_not_over_says_so_and_an_empty_one_is_short(reports: Relay) -> None:
    assert reports("report", "show").out.splitlines()[1] == "incomplete day: until 14:20 UTC"
    empty = reports("report", "show", day(3)).out
    assert "✓ Nothing was published" in empty
    assert "empty tables: what changed, busiest hours" in empty


def test_one_table_is_shown_whole(reports: Relay) -> None:
    table, document = reports.both("report", "show", day(1), "--table", "throughput")
    assert len(table.out.splitlines()) == 103
    assert table.out.splitlines()[-1] == "… 1,932 rows in all, in the Parquet table throughput"
    assert document == json.loads(a_rich_day().to_json())["tables"]["throughput"]
    missing = reports("report", "show", day(1), "--table", "nosuch", code=1)
    assert "has no table nosuch: it has anomalies, throughput, latency" in missing.err


@pytest.mark.parametrize("more", [(), ("--table", "senders")], ids=["whole", "table"])
def test_a_report_of_another_format_is_refused_but_printed_as_json(reports: Relay, more: tuple[str, ...]) -> None:
    refused = reports("report", "show", day(4), *more, code=1)
    assert f"is not in this version's format: 'relay report show {day(4)} --json' prints it" in refused.err
    assert json.loads(reports("report", "show", day(4), "--json").out)["report"]["messages"] == 12345


@pytest.mark.parametrize("plain", [False, True], ids=["colours", "NO_COLOR"])
def test_on_a_terminal_it_has_colours_unless_they_are_not_wanted(reports: Relay, plain: bool) -> None:
    leader, follower = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": "80"} | ({"NO_COLOR": "1"} if plain else {})
    process = reports.start("report", "show", day(1), stdout=follower, environment=environment)
    os.close(follower)
    said = b""
    try:
        while part := os.read(leader, 65536):
            said += part
    except OSError:  # how a terminal says that nobody writes any more
        pass
    os.close(leader)
    end(process)
    assert "12 findings need attention" in said.decode()
    assert (b"\x1b[33m" in said) is not plain
    assert (b"\x1b" in said) is not plain


@pytest.mark.parametrize("width", [60, 80, 300])
@pytest.mark.parametrize("a_day", DAYS.values(), ids=DAYS.keys())
def test_every_line_fits_and_is_harmless(
    a_day: Callable[[], NightlyReport], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_text, "terminal_width", lambda: width)
    report = read_nightly(json.loads(a_day().to_json()))
    assert report is not None
    lines = [*report_lines(report)]
    for name, table in report.tables.items():
        lines += table_lines(report.date, name, table)
    for line in lines:
        assert line.isprintable()
        # What is to be copied is never cut.
        assert columns(line) <= width or line.startswith(("  $ ", "… ")), line


def test_where_there_is_little_room_the_first_column_and_the_bars_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_text, "terminal_width", lambda: 60)
    report = read_nightly(json.loads(made({"latency": RICH_TABLES["latency"]}, [], [], {}).to_json()))
    assert report is not None
    heads, first = list(table_lines(report.date, "latency", report.tables["latency"]))[1:3]
    assert heads.split() == ["TARGET", "STEP", "MESSAGES", "P95"]
    assert first.endswith("27.3 s  ███████")


ODD: dict[str, dict[str, Any]] = {
    "another version": {"version": 2},
    "no attention": {"attention": None},
    "a text for a list": {"headline": "none"},
    "rows that are none": {"tables": {"x": {"title": "x", "columns": [{"name": "a", "title": "a"}], "rows": [1]}}},
    "no columns": {"tables": {"x": {"title": "x", "columns": [], "rows": [], "total": 0}}},
    "infinity": {"headline": [{"title": "x", "unit": "us", "value": "Infinity"}]},
    "a plot of nothing": {"plots": [{"title": "x", "form": "hours", "unit": "count", "labels": [], "series": []}]},
}


@pytest.mark.parametrize("part", ODD.values(), ids=ODD.keys())
def test_what_only_looks_like_a_report_is_not_taken_for_one(part: dict[str, Any]) -> None:
    assert read_nightly(json.loads(a_rich_day().to_json()) | part) is None


def test_a_report_with_odd_values_is_shown_all_the_same() -> None:
    odd = {
        "headline": [{"title": "\x1b", "unit": "parsecs", "value": 1.5, "trend": [None, 0, -1, 1e300]}],
        "plots": [{"title": "p", "form": "?", "unit": "us", "labels": ["a"], "series": [{"name": "", "values": []}]}],
        "tables": {
            "x\x1b": {
                "title": "x",
                "columns": [{"name": "a", "title": "a", "unit": "time"}, {"name": "b", "title": "b", "unit": "us"}],
                "bar": "b",
                "rows": [{"a": 10**18, "b": "many"}, {"a": {"deep": [1]}, "b": None}, {}],
                "total": 5,
            }
        },
    }
    report = read_nightly(json.loads(a_rich_day().to_json()) | odd)
    assert report is not None
    assert all(line.isprintable() for line in report_lines(report))

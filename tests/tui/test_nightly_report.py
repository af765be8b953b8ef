"""The report that Spark makes, on the reports screen: attention first, units, bars, and rows that lead to traces."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relay_core.protocol.report import NightlyReport
from relay_core.protocol.reporting import Report as ReportEntry
from relay_tui.views.reports.layout import attention, cells_of, columns_of, freshness
from relay_tui.views.reports.nightly import MAX_COLUMNS, MAX_ROWS, Section, sections_of
from tests.kit.supervisor import a_supervisor
from tests.spark.report.days import DAYS, TRACE, a_rich_day, an_empty_day, an_unfinished_day
from tests.tui.driver import a_dashboard

TODAY = datetime.now(UTC).date()


def day(back: int) -> str:
    return (TODAY - timedelta(days=back)).isoformat()


def put(data_dir: Path, date: str, report: NightlyReport) -> None:
    directory = data_dir / "reports" / f"date={date}"
    directory.mkdir(parents=True)
    (directory / "report.json").write_bytes(report.to_json())


def sections(report: NightlyReport) -> dict[str, Section]:
    return {section.title: section for section in sections_of(report)}


@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=["wide", "narrow"])
async def test_it_opens_with_what_needs_attention_and_says_more_of_the_row_under_the_cursor(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    put(tmp_path, day(0), an_unfinished_day())
    put(tmp_path, day(1), a_rich_day())
    put(tmp_path, day(2), an_empty_day())
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=size) as tui:
        await tui.press("R")
        await tui.until(f"{day(0)} +◌ so far +▲ 12 to check +231,904")
        await tui.until(f"{day(1)} .* +▲ 12 to check +231,904")
        await tui.until(f"{day(2)} .* +✓ no findings +0")
        await tui.press("j", "enter")
        await tui.until("✗ The breaker of telegram is open")
        await tui.until(r"Open for 2 h 10 min, opened 3 times. Last: 5 failures in a row: 502 Bad\s+Gateway")
        await tui.until(r"\$ relay breakers")
        await tui.press("tab", "j")
        await tui.until(r"\$ relay adapters test telegram")
        await tui.press("escape", "j")
        await tui.until("Messages +57,600 +51,400 +.12%")
        await tui.press("j")
        await tui.until("14:00 +4,500 +412 +3 +█")
        await tui.press("j", "j", "j", "j")
        await tui.until(r"How long deliveries took, by target: .*\s.*to the end\.")
        await tui.until("claude-code +end to end .*27s .*█")


async def test_a_finding_leads_to_its_traces(tmp_path: Path) -> None:
    put(tmp_path, day(1), a_rich_day())
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("R")
        await tui.until(day(1))
        await tui.press("enter")
        await tui.until("1 loop was stopped")
        await tui.press("tab", *["j"] * 8)
        await tui.until(r"\$ relay trace")
        await tui.press("enter")
        await tui.until(lambda: tui.view.NAME == "traces")
        await tui.until(TRACE)


def test_sections_are_in_the_reports_order_with_units_and_leads() -> None:
    found = sections(a_rich_day())
    assert list(found)[:5] == ["attention", "key numbers", "by hour", "by day", "what changed"]
    assert list(found)[-1] == "made from"
    numbers = {row[0]: row[1:4] for row in found["key numbers"].rows}
    assert numbers["p95, slowest target"] == ("1.9s", "310ms", "×6.1")
    assert numbers["Adapters down"] == ("2h15m", "0s", "–")
    latency = found["latency"]
    assert latency.rows[0] == ("claude-code", "end to end", "9,000", "4.2s", "27s", "59s", "4m12s")
    assert (latency.bar, latency.shares[4][0], latency.links[3]) == (4, 1.0, "subject=relay.agent.worker-1")
    assert found["senders"].rows[1][6] == "104%"
    assert found["busiest hours"].note == "1,832 more are in the Parquet table"
    assert found["what changed"].rows[1][:3] == ("p95 end to end, claude-code", "1.9s", "310ms")
    assert found["conversations"].links[0] == TRACE
    assert ("badLines, not_json", "3") in found["made from"].rows


def test_a_row_has_the_style_of_its_level_and_the_title_stays_where_there_is_little_room() -> None:
    found = sections(a_rich_day())["attention"]
    styles = [cells_of(found, at, None, 0)[0][1] for at in range(len(found.rows))]
    assert styles == ["bad"] * 3 + ["warn"] * 9 + [""] * 2
    (column,) = columns_of(found, None, 40)
    assert (column.title, column.width, column.from_width) == ("finding", 37, 0)


@pytest.mark.parametrize("a_day", DAYS.values(), ids=DAYS.keys())
def test_every_text_is_safe_and_every_section_is_whole(a_day: Callable[[], NightlyReport]) -> None:
    for section in sections_of(a_day()):
        assert len(section.rows) == len(section.links) == len(section.sources) <= MAX_ROWS
        assert all(len(row) == len(section.columns) <= MAX_COLUMNS for row in section.rows)
        assert section.explanations is None or len(section.explanations) == len(section.rows)
        assert all(0 <= share <= 1 for shares in section.shares.values() for share in shares)
        told = [text for pair in section.explanations or () for text in pair]
        texts = [
            section.title,
            section.note,
            section.about,
            *section.columns,
            *told,
            *(text for row in section.rows for text in row),
        ]
        assert all(text.isprintable() and len(text) <= 400 for text in texts)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (
            ReportEntry(date="2026-03-01", made_at=0, bytes=1, complete=False, attention=0),
            ("◌ so far", "✓ no findings"),
        ),
        (ReportEntry(date="2026-03-01", made_at=0, bytes=1, complete=True, attention=3), ("✓ fresh", "▲ 3 to check")),
        (ReportEntry(date="2026-03-01", made_at=0, bytes=1), ("✓ fresh", "–")),
    ],
)
def test_the_list_says_what_a_report_says_of_itself(report: ReportEntry, words: tuple[str, str]) -> None:
    now = int(datetime(2026, 3, 2, 3, tzinfo=UTC).timestamp() * 1000)
    assert (freshness(report, now)[0], attention(report)[0]) == words

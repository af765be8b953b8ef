from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.geometry import Region

from relay_core.client.client import RelayClient
from relay_tui.views.overview.layout import arrange
from relay_tui.views.overview.panel_content import fit_subject
from relay_tui.views.overview.panel_grid import PanelGrid
from relay_tui.widgets.styled_lines import Line, changed_columns, fit_line, line, under_cursor
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import Driver, a_dashboard

SMALL_BOXES = {"reliability": {"backpressure": {"maxMailboxSize": 10}, "rateLimit": {"maxPerWindow": 8}}}
SIZES = [pytest.param((120, 36), id="120x36"), pytest.param((80, 24), id="80x24")]


async def a_busy_bus(client: RelayClient) -> None:
    """Have a full mailbox, a sender at its limit, dead letters, a breaker that is held open and events."""
    for name in ("calm", "slow", "full"):
        await client.register_endpoint(f"relay.agent.{name}")
    for name, count in (("slow", 8), ("full", 10)):
        for _ in range(count):
            await client.publish(f"relay.agent.{name}", "work", sender=f"relay.desk.{name}{_ // 8}")
    for _ in range(2):
        await client.publish("relay.agent.nobody", "hello?", sender="relay.desk.lost")
    await client.force_breaker("relay.agent.calm", "OPEN", "maintenance")


def cursor(tui: Driver) -> str | None:
    return tui.view.query_one(PanelGrid).cursor


async def go_to(tui: Driver, start: str) -> None:
    """Move down until the cursor is on a row."""
    await tui.press("g")
    await tui.until(lambda: cursor(tui))
    for _ in range(60):
        if str(cursor(tui)).startswith(start):
            return
        await tui.press("j")
    raise AssertionError(f"no row {start}\n{tui.text()}")


@pytest.mark.parametrize("size", SIZES)
async def test_it_says_what_needs_a_look(tmp_path: Path, size: tuple[int, int]) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        await a_busy_bus(client)
        async with a_dashboard(supervisor, size=size) as tui:
            await tui.until(r"full .*█ .*10.*✗ critical")
            await tui.until(r"slow .*█.* 8.*▲ warning")
            await tui.until(r"calm .* 0.*● ok")
            await tui.until(r"slow0 .*8/8 ✗")
            await tui.until(r"✗ forced .*calm.* until reset")
            await tui.until(r"2 .*no_match .*nobody")
            await tui.until(r"breaker .*calm.*maintenance")
            await tui.until(r"p95 .*p50")
            await tui.until(r"(delivered|stored) 18 .*refused 0 .*dead 2")
            widths = {len(line) for line in tui.lines()}
            assert widths == {size[0]}


async def test_a_list_that_does_not_fit_says_how_many_more_there_are(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        for number in range(30):
            await client.register_endpoint(f"relay.agent.a{number}")
        async with a_dashboard(supervisor, size=(80, 24)) as tui:
            await tui.until(r"\+\d+ more")
            shown = tui.text().count("● ok")
            await tui.until(rf"\+{30 - shown} more")


@pytest.mark.parametrize(
    ("row", "screen", "argument"),
    [
        pytest.param("breaker:", "breakers", "relay.agent.calm", id="breaker"),
        pytest.param("mailbox:", "mailboxes", "relay.agent.full", id="mailbox"),
        pytest.param("sender:", "mailboxes", "relay.desk.", id="sender"),
        pytest.param("dead:", "dead-letters", "code=no_match to=relay.agent.nobody", id="dead letters"),
        pytest.param("event:breaker", "breakers", "relay.agent.calm", id="event of a breaker"),
        pytest.param("event:dead_letter", "traces", "", id="event with a message"),
    ],
)
async def test_enter_leads_to_the_screen_that_shows_more(tmp_path: Path, row: str, screen: str, argument: str) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        await a_busy_bus(client)
        async with a_dashboard(supervisor) as tui:
            await tui.until("✗ forced")
            await tui.until("dead letter ")
            await go_to(tui, row)
            board = tui.view.query_one(PanelGrid)
            assert board.entry is not None
            leads = board.entry.link
            state = tui.app.store.state
            named = {key: box.subject for key, box in state.mailboxes.items()}
            assert argument in named.get(str(leads[1]), str(leads[1]))
            await tui.press("enter")
            await tui.until(lambda: screen == tui.view.NAME)


async def test_the_cursor_stays_on_its_row_when_others_come_before_it(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        for name in ("a", "b", "c"):
            await client.register_endpoint(f"relay.agent.{name}")
        async with a_dashboard(supervisor) as tui:
            await tui.until("relay.agent.c")
            await tui.press("j")
            chosen = cursor(tui)
            assert "▶relay.agent.b" in tui.text()
            for _ in range(9):
                await client.publish("relay.agent.c", 1, sender=f"relay.desk.d{_}")
            await tui.until(r"relay.agent.c .*▲ warning")
            lines = tui.text()
            assert lines.index("relay.agent.c ") < lines.index("▶relay.agent.b")
            assert cursor(tui) == chosen


async def test_the_cursor_goes_to_what_took_the_place_of_a_row_that_is_gone(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        for name in ("a", "b", "c"):
            await client.register_endpoint(f"relay.agent.{name}")
            await client.force_breaker(f"relay.agent.{name}", "OPEN", "why")
        async with a_dashboard(supervisor) as tui:
            await tui.until("3 of 3 not closed")
            await go_to(tui, "breaker:")
            await tui.press("j")
            assert "▶✗ forced    relay.agent.b" in tui.text()
            await client.reset_breaker("relay.agent.b")
            await tui.until("▶✗ forced    relay.agent.c")


async def test_tab_goes_from_panel_to_panel_and_l_to_the_other_side(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path, SMALL_BOXES) as supervisor, a_client(supervisor) as client:
        await a_busy_bus(client)
        async with a_dashboard(supervisor) as tui:
            await tui.until("✗ forced")
            await tui.until("dead letter ")
            await tui.press("g")
            seen = []
            for _ in range(6):
                seen.append(str(cursor(tui)).partition(":")[0])
                await tui.press("tab")
            assert seen == ["mailbox", "sender", "breaker", "dead", "event", "mailbox"]
            await tui.press("shift+tab", "l")
            assert str(cursor(tui)).partition(":")[0] in ("breaker", "dead")
            await tui.press("h")
            assert str(cursor(tui)).partition(":")[0] == "mailbox"


async def test_a_click_selects_and_a_double_click_opens(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        for name in ("a", "b"):
            await client.register_endpoint(f"relay.agent.{name}")
        async with a_dashboard(supervisor) as tui:
            await tui.until("relay.agent.b")
            row = next(y for y, text in enumerate(tui.lines()) if "relay.agent.b" in text)
            await tui.click(4, row)
            await tui.until("▶relay.agent.b")
            await tui.click(4, row, times=2)
            await tui.until(lambda: tui.view.NAME == "mailboxes")
            await tui.until("▶ relay.agent.b")


@pytest.mark.parametrize(
    ("before", "after", "until"),
    [
        pytest.param(line("name ", "12", " ok"), line("name ", "13", " ok"), 7, id="a number"),
        pytest.param(line("n", "1", " ", "2"), line("n", "3", " ", "4"), 4, id="two"),
        pytest.param(line("name ", "9", " ok"), line("name ", "10", " ok"), None, id="another width"),
        pytest.param(line("日本", "1"), line("日本", "2"), 5, id="after wide characters"),
        pytest.param(line("a"), under_cursor(line("a")), 1, id="the cursor"),
        pytest.param(line("a", "b"), line("a"), None, id="fewer pieces"),
    ],
)
def test_a_line_is_painted_as_far_as_it_differs(before: Line, after: Line, until: int | None) -> None:
    assert changed_columns(before, after)[1] == until


@pytest.mark.parametrize(("width", "text"), [(0, ""), (3, "日 "), (4, "日本"), (7, "日本ab ")])
def test_a_line_fits_its_panel(width: int, text: str) -> None:
    assert "".join(piece for piece, _ in fit_line(line("日本", "ab"), width)) == text


@pytest.mark.parametrize(
    ("width", "height", "columns"),
    [(200, 60, 2), (120, 34, 2), (80, 22, 2), (76, 14, 2), (75, 40, 1), (60, 14, 1)],
)
def test_panels_fill_the_screen_and_never_overlap(width: int, height: int, columns: int) -> None:
    names = ("throughput", "mailboxes", "senders", "breakers", "dead-letters", "adapters", "events")
    placed = arrange(width, height, dict.fromkeys(names, 100))
    regions = [place.region for place in placed.values()]
    assert len({region.x for region in regions}) == columns
    assert all(Region(0, 0, width, height).contains_region(region) for region in regions)
    assert not any(region.overlaps(other) for region in regions for other in regions if region is not other)
    between_the_columns = height
    assert width * height - sum(region.area for region in regions) <= between_the_columns


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("relay.agent.a", 15, "relay.agent.a  "),
        ("relay.agent.storefront", 20, "…agent.storefront   "),
        ("relay.agent.storefront", 8, "…refront"),
        ("evil\x1b[31m", 12, "evil␛[31m   "),
    ],
)
def test_a_name_is_cut_at_its_beginning(name: str, width: int, shown: str) -> None:
    assert fit_subject(name, width) == shown


def test_a_purged_dead_letter_is_shown_as_purged_and_not_as_a_new_one() -> None:
    from relay_core.records.events import Event, EventKind
    from relay_tui.views.overview.event_panel import _grouped, _line

    common: dict[str, Any] = {
        "kind": EventKind.DEAD_LETTER,
        "target": "t",
        "subject": "relay.agent.a",
        "code": "timeout",
    }
    events = tuple(Event(time=n, status=status, **common) for n, status in enumerate(("failed", "purged", "replaced")))
    rows = ["".join(text for text, _ in _line(group, 120)) for group in _grouped(events).values()]
    assert ["dead letter" in row for row in rows] == [True, False, False]
    assert "· purged" in rows[1]
    assert "· replaced" in rows[2]

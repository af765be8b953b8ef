from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from relay_tui.widgets.styled_lines import Line, Lines, Piece, changed_columns, fit, line, width_of
from relay_tui.widgets.table import Column, LiveTable, Row
from relay_tui.widgets.theme import Palette
from tests.tui.driver import strips_of


class Bench(App[None]):
    """One table, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.palette = Palette("dark")
        self.heard: list[str] = []

    def compose(self) -> ComposeResult:
        yield LiveTable([Column("NAME"), Column("N", 6, right=True), Column("MORE", 10, from_width=60)])

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        self.heard.append(f"moved {event.table.key}")

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        self.heard.append(f"chosen {event.table.key}")

    def on_live_table_near_end(self, event: LiveTable.NearEnd) -> None:
        self.heard.append("reached")

    @property
    def table(self) -> LiveTable:
        return self.query_one(LiveTable)

    def shown(self) -> list[str]:
        return [strip.text for strip in strips_of(self)]


def rows(*keys: str) -> list[Row]:
    return [Row(key, (f"row {key}", str(len(key)), "more")) for key in keys]


@asynccontextmanager
async def a_table(size: tuple[int, int] = (70, 6)) -> AsyncIterator[tuple[Bench, Pilot[None]]]:
    app = Bench()
    async with app.run_test(size=size) as pilot:
        app.table.focus()
        await pilot.pause()
        yield app, pilot


async def test_the_cursor_stays_on_its_key_and_on_its_line_of_the_screen() -> None:
    async with a_table() as (app, pilot):
        app.table.set_rows(rows(*"bcdefghij"))
        app.table.go_to(3)
        await pilot.pause()
        assert app.table.key == "e"
        before = [at for at, text in enumerate(app.shown()) if text.startswith("▶")]

        app.table.set_rows(rows(*"abcdefghij"))
        await pilot.pause()
        assert app.table.key == "e"
        assert [at for at, text in enumerate(app.shown()) if text.startswith("▶")] == before


async def test_when_the_row_is_gone_the_one_in_its_place_is_taken() -> None:
    async with a_table() as (app, _):
        app.table.set_rows(rows(*"abc"))
        app.table.go_to(1)
        app.table.set_rows(rows(*"ac"))
        assert app.table.key == "c"
        app.table.set_rows(rows("a"))
        assert app.table.key == "a"


async def test_when_all_rows_were_gone_the_cursor_goes_back_to_its_own() -> None:
    async with a_table() as (app, _):
        app.table.set_rows(rows(*"abc"))
        app.table.go_to(1)
        app.table.set_rows([])
        app.table.set_rows(rows("a"))
        assert app.table.key == "a"
        app.table.set_rows(rows(*"abc"))
        assert app.table.key == "b"


async def test_when_all_rows_were_gone_and_the_cursor_was_moved_it_stays() -> None:
    async with a_table() as (app, _):
        app.table.set_rows(rows(*"abc"))
        app.table.go_to(1)
        app.table.set_rows([])
        app.table.set_rows(rows(*"ac"))
        app.table.go_to(1)
        app.table.go_to(0)
        app.table.set_rows(rows(*"abc"))
        assert app.table.key == "a"


async def test_a_table_that_follows_has_its_cursor_on_nothing_until_it_is_moved() -> None:
    async with a_table() as (app, pilot):
        table = LiveTable([Column("NAME")], follows=True)
        await app.mount(table)
        found: list[str | None] = []

        def come(*keys: str) -> None:
            table.set_rows([Row(key, (key,)) for key in keys])
            found.append(table.key)

        come("b", "c")
        table.move(1)
        come("a", "b", "c")
        table.follow()
        come("z", "a", "b", "c")
        await pilot.pause()
        assert found == [None, "b", None]


async def test_marks_survive_whatever_happens_to_the_rows() -> None:
    async with a_table() as (app, pilot):
        app.table.set_rows(rows(*"abc"))
        app.table.marks.add("a")
        app.table.set_rows(rows(*"bc"))
        app.table.set_rows(rows(*"zabc"))
        await pilot.pause()
        assert [text[:7] for text in app.shown() if "●" in text] == [" ●row a"]


async def test_columns_that_do_not_fit_are_left_out() -> None:
    async with a_table((50, 6)) as (app, pilot):
        app.table.set_rows(rows("a"))
        await pilot.pause()
        assert "MORE" not in "".join(app.shown())
        await pilot.resize_terminal(70, 6)
        await pilot.pause()
        assert "MORE" in "".join(app.shown())


async def test_only_lines_that_look_different_are_painted() -> None:
    async with a_table() as (app, pilot):
        app.table.set_rows(rows(*"abc"))
        await pilot.pause()
        painted: list[int] = []
        render = app.table.render_line
        app.table.render_line = lambda y: painted.append(y) or render(y)  # type: ignore[method-assign, func-returns-value]

        app.table.set_rows(rows(*"abc"))
        await pilot.pause()
        assert painted == []

        app.table.set_rows([*rows("a"), Row("b", ("another", "1", "more")), *rows("c")])
        await pilot.pause()
        assert painted == [2]


async def test_the_end_of_what_is_held_is_told_when_it_comes_near() -> None:
    async with a_table() as (app, pilot):
        app.table.set_rows(rows(*(f"k{n:03}" for n in range(100))))
        app.table.move(1)
        await pilot.pause()
        assert "reached" not in app.heard
        app.table.go_to(1 << 60)
        await pilot.pause()
        assert app.heard[-2:] == ["moved k099", "reached"]


async def test_a_click_moves_and_a_double_click_opens() -> None:
    async with a_table() as (app, pilot):
        app.table.set_rows(rows(*"abc"))
        await pilot.click(LiveTable, offset=(5, 3))
        assert app.table.key == "c"
        await pilot.click(LiveTable, offset=(5, 2), times=2)
        assert app.heard[-1] == "chosen b"
        await pilot.click(LiveTable, offset=(5, 5))  # below the last row
        assert app.table.key == "b"


@settings(deadline=None)
@given(st.text(max_size=30), st.integers(0, 20), st.booleans())
def test_a_text_is_fitted_to_exactly_its_width(text: str, width: int, right: bool) -> None:
    printable = "".join(char for char in text if char.isprintable())
    assert width_of([(fit(printable, width, right=right), "")]) == width


_LINES = st.lists(st.tuples(st.text("ab日", max_size=4), st.sampled_from(["", "bad"])), max_size=6).map(tuple)


@given(_LINES, _LINES)
def test_what_is_outside_the_changed_columns_is_the_same(before: Line, after: Line) -> None:
    def cells(pieces: Line) -> list[Piece]:
        return [(cell, name) for text, name in pieces for cell in text.replace("日", "日.")]

    begin, end = changed_columns(before, after)
    was, now = cells(before), cells(after)
    assert was[:begin] == now[:begin]
    if end is not None:
        assert was[end:] == now[end:]


async def test_lines_scroll_and_never_show_emptiness_below_the_last() -> None:
    class Page(App[None]):
        palette = Palette("dark")

        def compose(self) -> ComposeResult:
            yield Lines([line(f"line {n}") for n in range(20)])

    app = Page()
    async with app.run_test(size=(40, 5)) as pilot:
        lines = app.query_one(Lines)
        lines.move(1 << 60)
        await pilot.pause()
        assert [strip.text.strip() for strip in strips_of(app)] == [f"line {n}" for n in range(15, 20)]
        lines.show([line("only")])
        await pilot.pause()
        assert strips_of(app)[0].text.strip() == "only"

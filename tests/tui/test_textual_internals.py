"""Textual may be any release of its major version: these tests name a private part of it that a release has removed."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.screen import Screen
from textual.widgets import Static

from relay_tui.widgets.textual_internals import SCREEN_PARTS, paint_now
from tests.tui.driver import TEST_PARTS


class OneLine(App[None]):
    def compose(self) -> list[Static]:
        return [Static("hello")]


@pytest.mark.parametrize("part", SCREEN_PARTS)
async def test_the_screen_has_the_private_parts_the_dashboard_uses(part: str) -> None:
    async with OneLine().run_test() as pilot:
        assert hasattr(pilot.app.screen, part), f"this Textual has no Screen.{part}: see widgets/textual_internals.py"


@pytest.mark.parametrize(("owner", "part"), TEST_PARTS)
async def test_textual_has_the_private_parts_the_tests_use(owner: str, part: str) -> None:
    async with OneLine().run_test() as pilot:
        found = pilot.app if owner == "App" else pilot.app.screen
        assert hasattr(found, part), f"this Textual has no {owner}.{part}: see tests/tui/driver.py"


async def test_a_widget_is_painted_before_the_next_refresh() -> None:
    async with OneLine().run_test() as pilot:
        await pilot.pause()
        screen, widget = pilot.app.screen, pilot.app.query_one(Static)
        paint_now(screen, widget)
        assert widget not in screen._dirty_widgets


async def test_a_release_without_the_parts_paints_with_the_next_refresh() -> None:
    class OtherRelease(Screen[None]):
        def __getattribute__(self, name: str) -> object:
            if name in SCREEN_PARTS and hidden:
                raise AttributeError(name)
            return super().__getattribute__(name)

    hidden = False
    async with OneLine().run_test() as pilot:
        screen = OtherRelease()
        await pilot.app.push_screen(screen)
        hidden = True
        paint_now(screen, Static())
        hidden = False

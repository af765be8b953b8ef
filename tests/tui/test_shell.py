from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual import events

from relay_supervisor.supervisor import Supervisor
from relay_tui.bars import Hints
from relay_tui.look import THEMES
from relay_tui.screens import SCREENS
from tests.supervisor.inside import a_client, a_supervisor
from tests.tui.desk import a_dashboard

TARGET = "relay.agent.flaky"


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        yield supervisor


async def test_every_screen_is_reached_by_its_key(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        for one in SCREENS:
            if one.key is not None:
                await desk.press("escape", one.key)
                await desk.until(lambda one=one: one.name == desk.view.NAME and one.title in desk.lines()[0])  # type: ignore[misc]


async def test_a_command_is_typed_by_its_name(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press(":")
        await desk.type("breakers")
        await desk.press("enter")
        await desk.until(lambda: desk.view.NAME == "breakers")
        await desk.press(":", "up")
        await desk.until(":breakers")
        await desk.press("escape")

        await desk.press(":")
        await desk.type("nonsense")
        await desk.press("enter")
        await desk.until("there is no command 'nonsense'")


async def test_while_a_command_is_typed_keys_do_nothing_else(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2", ":")
        await desk.type("1qX?")
        await desk.until(":1qX")
        assert desk.view.NAME == "breakers"
        await desk.press("escape", "j")
        await desk.until("quit")
        assert desk.app.is_running


async def test_the_palette_does_what_the_registry_has(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("ctrl+p")
        await desk.until("What do you want to do")
        await desk.type("go to breakers")
        await desk.until("Go to: Breakers")
        await desk.press("enter")
        await desk.until(lambda: desk.view.NAME == "breakers")


async def test_help_lists_the_keys_of_the_screen(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2", "?")
        await desk.until("Hold the breaker open until it is reset")
        await desk.press("escape")
        await desk.until("TARGET")


async def test_what_is_pressed_twice_is_done_once(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2", "F", "F", "escape", "escape", "?", "?", "escape", "escape")
        await desk.until(lambda: desk.app.screen is desk.app.desk)
        await desk.until("force open")


async def test_a_screen_that_cannot_be_drawn_is_told_and_ends_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_dashboard(supervisor) as desk:
        monkeypatch.setattr("relay_tui.views.breakers._ORDER", {})
        await desk.press("2")
        await desk.until("the screen breakers could not be drawn: KeyError")
        desk.expected_faults = list(desk.app.faults)
        monkeypatch.undo()
        await desk.until(TARGET)
        assert len(desk.app.faults) == 1


async def test_what_is_typed_in_one_go_after_a_slash_or_a_screens_key_goes_where_it_is_meant_to(
    supervisor: Supervisor,
) -> None:
    async with a_dashboard(supervisor) as desk:
        for char in ":breakers":
            desk.app.post_message(events.Key(char, char))
        await desk.until(":breakers")
        await desk.press("escape")
        for char in "7relay.queue.print":
            desk.app.post_message(events.Key({".": "full_stop"}.get(char, char), char))
        await desk.until("relay.queue.print")
        assert desk.app.is_running


async def test_a_click_beside_an_open_prompt_does_not_take_its_keys(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2", ":")
        await desk.type("alerts")
        await desk.click(10, 3)
        await desk.press("escape")
        await desk.until("force open")
        await desk.press("1")
        await desk.until(lambda: desk.view.NAME == "overview")


async def test_an_alert_leads_to_the_screen_that_shows_more(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk, a_client(supervisor) as client:
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        await desk.until("1 alert")
        await desk.press("!")
        await desk.until("its breaker is forced open")
        await desk.press("enter")
        await desk.until("▶ ✗ forced open")


async def test_where_nothing_can_be_seen_no_key_but_quit_does_anything(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, size=(50, 12)) as desk:
        await desk.press("2", "F", ":", "?")
        assert desk.app.screen is desk.app.desk
        await desk.press("q")
        await desk.until(lambda: not desk.app.is_running)


async def test_read_only_has_no_action_that_changes_something(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, read_only=True) as desk:
        await desk.press("2")
        await desk.until(TARGET)
        assert "read-only" in desk.lines()[0]
        await desk.press("F", "X")
        await desk.press(":")
        await desk.type("force")
        await desk.press("enter")
        await desk.until("there is no command 'force'")
        assert desk.app.screen is desk.app.desk


async def test_a_paused_display_stands_still_and_then_catches_up(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk, a_client(supervisor) as client:
        await desk.press("2")
        await desk.until(TARGET)
        await desk.press("p")
        await desk.until("paused")
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        await desk.until(lambda: any(one.forced for one in desk.app.store.state.breakers.values()))
        assert "forced" not in desk.text()
        await desk.press("p")
        await desk.until("forced open")


@pytest.mark.parametrize("theme", THEMES)
async def test_every_theme_paints(supervisor: Supervisor, theme: str) -> None:
    async with a_dashboard(supervisor, theme=theme) as desk:
        await desk.press("2")
        await desk.until(TARGET)
        await desk.press(":")
        await desk.type("theme")
        await desk.press("enter")
        await desk.until(lambda: desk.app.theme != theme)
        assert TARGET in desk.text()


async def test_where_there_is_too_little_room_a_card_says_so(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, size=(50, 12)) as desk:
        await desk.until("at least 60×16")
        await desk.resize(80, 24)
        await desk.until("Overview")
        await desk.until(lambda: "at least" not in desk.text())


async def test_a_hint_in_the_footer_can_be_clicked(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2")
        await desk.until("force open")
        footer = desk.lines()[-1]
        await desk.click(footer.index("force open") + 1, 35)
        await desk.until("Why?")


async def test_the_footer_stays_as_it_is_while_a_question_is_answered(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:
        await desk.press("2")
        await desk.until("force open")
        hints = desk.app.desk.query_one(Hints)
        footer = hints.lines
        await desk.press("F")
        await desk.until("Why?")
        desk.app.draw()
        assert hints.lines == footer


async def test_a_broken_file_of_keys_is_told_and_changes_nothing(supervisor: Supervisor, own_places: Path) -> None:
    path = own_places / "config" / "relay" / "keys.toml"
    path.parent.mkdir(parents=True)
    path.write_text('force = "X"')
    async with a_dashboard(supervisor) as desk:
        await desk.until("'X' is both")
        await desk.press("2")
        await desk.until("F force open")


async def test_the_operators_own_keys_are_in_force(supervisor: Supervisor, own_places: Path) -> None:
    path = own_places / "config" / "relay" / "keys.toml"
    path.parent.mkdir(parents=True)
    path.write_text('force = "ctrl+y"')
    async with a_dashboard(supervisor) as desk:
        await desk.press("2")
        await desk.until(r"ctrl\+y force open")
        await desk.press("ctrl+y")
        await desk.until("Why?")


async def test_what_is_copied_is_also_in_a_file(supervisor: Supervisor, own_places: Path) -> None:
    async with a_dashboard(supervisor) as desk:
        desk.app.copy("text for later", "the text")
        await desk.until("the text sent to the terminal's clipboard; also in")
        copied = own_places / "run" / "relay" / "clipboard.txt"
        assert copied.read_text() == "text for later"
        assert copied.stat().st_mode & 0o777 == 0o600


async def test_an_action_that_fails_is_told_and_ends_nothing(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as desk:

        async def broken() -> None:
            raise RuntimeError("[bold]\x1b]0;owned\x07 went wrong")

        desk.app.start(broken(), doing="Break it")
        await desk.until("Break it: RuntimeError: .bold.␛]0;owned␇ went wrong")
        desk.expected_faults = list(desk.app.faults)
        await desk.press("2")
        await desk.until(TARGET)

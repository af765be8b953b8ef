from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from textual import events

from relay_supervisor.supervisor import Supervisor
from relay_tui.screens import SCREENS
from relay_tui.shell.bars import Hints
from relay_tui.widgets.theme import THEMES
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import a_dashboard

TARGET = "relay.agent.flaky"


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        yield supervisor


async def test_every_screen_is_reached_by_its_key(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        for screen in SCREENS:
            if screen.key is not None:
                await tui.press("escape", screen.key)
                await tui.until(lambda screen=screen: screen.name == tui.view.NAME and screen.title in tui.lines()[0])  # type: ignore[misc]


async def test_a_command_is_typed_by_its_name(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press(":")
        await tui.type("breakers")
        await tui.press("enter")
        await tui.until(lambda: tui.view.NAME == "breakers")
        await tui.press(":", "up")
        await tui.until(":breakers")
        await tui.press("escape")

        await tui.press(":")
        await tui.type("nonsense")
        await tui.press("enter")
        await tui.until("there is no command 'nonsense'")


async def test_while_a_command_is_typed_keys_do_nothing_else(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2", ":")
        await tui.type("1qX?")
        await tui.until(":1qX")
        assert tui.view.NAME == "breakers"
        await tui.press("escape", "j")
        await tui.until("quit")
        assert tui.app.is_running


async def test_the_palette_does_what_the_registry_has(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("ctrl+p")
        await tui.until("What do you want to do")
        await tui.type("go to breakers")
        await tui.until("Go to: Breakers")
        await tui.press("enter")
        await tui.until(lambda: tui.view.NAME == "breakers")


async def test_help_lists_the_keys_of_the_screen(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2", "?")
        await tui.until("Hold the breaker open until it is reset")
        await tui.press("escape")
        await tui.until("TARGET")


async def test_what_is_pressed_twice_is_done_once(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2", "F", "F", "escape", "escape", "?", "?", "escape", "escape")
        await tui.until(lambda: tui.app.screen is tui.app.frame)
        await tui.until("force open")


async def test_a_screen_that_cannot_be_drawn_is_told_and_ends_nothing(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_dashboard(supervisor) as tui:
        monkeypatch.setattr("relay_tui.views.breakers._ORDER", {})
        await tui.press("2")
        await tui.until("the screen breakers could not be drawn: KeyError")
        tui.expected_faults = list(tui.app.tasks.faults)
        monkeypatch.undo()
        await tui.until(TARGET)
        assert len(tui.app.tasks.faults) == 1


async def test_what_is_typed_in_one_go_after_a_slash_or_a_screens_key_goes_where_it_is_meant_to(
    supervisor: Supervisor,
) -> None:
    async with a_dashboard(supervisor) as tui:
        for char in ":breakers":
            tui.app.post_message(events.Key(char, char))
        await tui.until(":breakers")
        await tui.press("escape")
        for char in "7relay.queue.print":
            tui.app.post_message(events.Key({".": "full_stop"}.get(char, char), char))
        await tui.until("relay.queue.print")
        assert tui.app.is_running


async def test_a_click_beside_an_open_prompt_does_not_take_its_keys(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2", ":")
        await tui.type("alerts")
        await tui.click(10, 3)
        await tui.press("escape")
        await tui.until("force open")
        await tui.press("1")
        await tui.until(lambda: tui.view.NAME == "overview")


async def test_an_alert_leads_to_the_screen_that_shows_more(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui, a_client(supervisor) as client:
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        await tui.until("1 alert")
        await tui.press("!")
        await tui.until("its breaker is forced open")
        await tui.press("enter")
        await tui.until("▶ ✗ forced open")


async def test_where_nothing_can_be_seen_no_key_but_quit_does_anything(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, size=(50, 12)) as tui:
        await tui.press("2", "F", ":", "?")
        assert tui.app.screen is tui.app.frame
        await tui.press("q")
        await tui.until(lambda: not tui.app.is_running)


async def test_read_only_has_no_action_that_changes_something(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, read_only=True) as tui:
        await tui.press("2")
        await tui.until(TARGET)
        assert "read-only" in tui.lines()[0]
        await tui.press("F", "X")
        await tui.press(":")
        await tui.type("force")
        await tui.press("enter")
        await tui.until("there is no command 'force'")
        assert tui.app.screen is tui.app.frame


async def test_a_paused_display_stands_still_and_then_catches_up(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui, a_client(supervisor) as client:
        await tui.press("2")
        await tui.until(TARGET)
        await tui.press("p")
        await tui.until("paused")
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        await tui.until(lambda: any(breaker.forced for breaker in tui.app.store.state.breakers.values()))
        assert "forced" not in tui.text()
        await tui.press("p")
        await tui.until("forced open")


@pytest.mark.parametrize("theme", THEMES)
async def test_every_theme_paints(supervisor: Supervisor, theme: str) -> None:
    async with a_dashboard(supervisor, theme=theme) as tui:
        await tui.press("2")
        await tui.until(TARGET)
        await tui.press(":")
        await tui.type("theme")
        await tui.press("enter")
        await tui.until(lambda: tui.app.theme != theme)
        assert TARGET in tui.text()


async def test_where_there_is_too_little_room_a_card_says_so(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor, size=(50, 12)) as tui:
        await tui.until("at least 60×16")
        await tui.resize(80, 24)
        await tui.until("Overview")
        await tui.until(lambda: "at least" not in tui.text())


async def test_a_hint_in_the_footer_can_be_clicked(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2")
        await tui.until("force open")
        footer = tui.lines()[-1]
        await tui.click(footer.index("force open") + 1, 35)
        await tui.until("Reason?")


async def test_the_footer_stays_as_it_is_while_a_question_is_answered(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:
        await tui.press("2")
        await tui.until("force open")
        hints = tui.app.frame.query_one(Hints)
        footer = hints.lines
        await tui.press("F")
        await tui.until("Reason?")
        tui.app.draw()
        assert hints.lines == footer


async def test_a_broken_file_of_keys_is_told_and_changes_nothing(supervisor: Supervisor, own_places: Path) -> None:
    path = own_places / "config" / "relay" / "keys.toml"
    path.parent.mkdir(parents=True)
    path.write_text('force = "X"')
    async with a_dashboard(supervisor) as tui:
        await tui.until("'X' is both")
        await tui.press("2")
        await tui.until("F force open")


async def test_the_operators_own_keys_are_in_force(supervisor: Supervisor, own_places: Path) -> None:
    path = own_places / "config" / "relay" / "keys.toml"
    path.parent.mkdir(parents=True)
    path.write_text('force = "ctrl+y"')
    async with a_dashboard(supervisor) as tui:
        await tui.press("2")
        await tui.until(r"ctrl\+y force open")
        await tui.press("ctrl+y")
        await tui.until("Reason?")


async def test_what_is_copied_is_also_in_a_file(supervisor: Supervisor, own_places: Path) -> None:
    async with a_dashboard(supervisor) as tui:
        tui.app.copy("text for later", "the text")
        await tui.until("the text sent to the terminal's clipboard; also in")
        copied = own_places / "run" / "relay" / "clipboard.txt"
        assert copied.read_text() == "text for later"
        assert copied.stat().st_mode & 0o777 == 0o600


async def test_an_action_that_fails_is_told_and_ends_nothing(supervisor: Supervisor) -> None:
    async with a_dashboard(supervisor) as tui:

        async def broken() -> None:
            raise RuntimeError("[bold]\x1b]0;owned\x07 went wrong")

        tui.app.tasks.start(broken(), doing="Break it")
        await tui.until("Break it: RuntimeError: .bold.␛]0;owned␇ went wrong")
        tui.expected_faults = list(tui.app.tasks.faults)
        await tui.press("2")
        await tui.until(TARGET)

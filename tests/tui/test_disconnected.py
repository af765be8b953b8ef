"""What an operator asks for without a connection is refused, never done later; and no dialog hides that it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from relay_core.client.client import RelayClient
from relay_tui.app import all_actions
from relay_tui.widgets.dialogs import Confirm
from tests.kit.daemon import a_daemon
from tests.kit.servers.proxy import a_wire
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import Driver, a_dashboard
from tests.tui.letters import FLAKY, astray, refused

QUESTIONS = {"purge": "purge 1", "plan": "replay"}


def dialogs(tui: Driver) -> int:
    return len(tui.app.screen_stack) - 1


async def letters(client: RelayClient) -> int:
    return (await client.dead_letter_page(limit=1)).total


async def test_what_is_asked_for_without_a_connection_is_refused_and_does_not_come_up_on_another_screen(
    tmp_path: Path,
) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        async with daemon.client() as client:
            await astray(client, 1)
        await tui.press("6")
        await tui.until("1 match")
        await tui.press("j")
        await daemon.kill()
        await tui.until("○ lost")
        await tui.press("X")
        await tui.until("purge: not connected: the")
        await tui.press("P")
        await tui.until("plan: not connected")
        assert not tui.app.tasks.running
        await tui.press("2")
        await daemon.start()
        await tui.until("● live")
        await tui.press("6")
        await tui.until("1 match")
        assert dialogs(tui) == 0

        # A question that is open when the connection goes: the header says so, and the answer does nothing.
        await tui.press("X")
        await tui.until("Type purge 1 and press enter")
        await daemon.kill()
        await tui.until(lambda: "○ lost" in tui.lines()[0])
        await tui.confirm("purge 1")
        said = "marked letters: not connected: the connection is lost. Nothing was done"
        await tui.until(lambda: any(said in text for text in tui.notifications()))
        await daemon.start()
        await tui.until("● live")
        async with daemon.client() as client:
            assert await letters(client) == 1


async def test_a_dead_connection_is_never_shown_as_live_over_a_question_about_a_plan(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        async with daemon.client() as client:
            await refused(client, FLAKY)
        await tui.press("6")
        await tui.until("1 match")
        await tui.press("j", "P")
        await tui.until("Replay 1 of 1 dead letter")
        await tui.press("enter")
        await tui.until("Type replay and press enter")
        assert dialogs(tui) == 2
        await daemon.kill()
        await tui.until(lambda: "○ lost" in tui.lines()[0])
        assert "● live" not in tui.text()
        await daemon.start()
        await tui.until(lambda: "● live" in tui.lines()[0])


async def test_an_action_whose_answer_is_lost_is_not_asked_again(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client, 1)
        async with (
            a_wire(supervisor.socket) as (socket, wire),
            a_dashboard(supervisor, socket=socket) as tui,
        ):
            wire.cut_answers_to["deadletters.purge"] = 1
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "X")
            await tui.until("Type purge 1 and press enter")
            await tui.confirm("purge 1")
            await tui.until("check whether it")
            await tui.until("● live")
            assert wire.asked.count("deadletters.purge") == 1


async def test_a_question_does_not_come_up_on_another_screen(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client, 1)
        async with a_wire(supervisor.socket) as (socket, wire), a_dashboard(supervisor, socket=socket) as tui:
            await tui.press("6")
            await tui.until("1 match")
            wire.hold_answers_to.add("deadletters.plan")
            await tui.press("j", "X", "2")
            wire.hold_answers_to.clear()
            wire.held.set()
            await tui.until("the screen was left")
            assert dialogs(tui) == 0


@pytest.mark.parametrize("name", QUESTIONS)
async def test_no_key_of_a_screen_answers_a_question(tmp_path: Path, name: str) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor) as tui:
            await tui.press("6")
            await tui.until("1 match")
            await tui.press("j", "X" if name == "purge" else "P")
            if name == "plan":
                await tui.until("Replay 1 of 1 dead letter")
                await tui.press("enter")
            await tui.until(f"Type {QUESTIONS[name]} and press enter")
            keys = {key for action in all_actions() for key in (action.key, *action.keys) if key is not None}
            if name == "plan":  # the same dialog: the keys that the screen behind it means by it
                keys &= {"P", "R", "X", "enter", "y"}
            for key in sorted(keys - {"escape", "ctrl+q", "tab", "shift+tab"}):
                await tui.press(key, "enter")  # alone: whatever it typed is taken out again
                assert isinstance(tui.app.screen, Confirm), key
                tui.app.screen.query_one(Input).clear()
            await tui.press("enter")
            await tui.until(f"that is not {QUESTIONS[name]}: nothing was done")
            assert await letters(client) == 1
            assert await client.replays() == []

"""What an operator asks for without a connection is refused, never done later; and no dialog hides that it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import Input

from relay_core.client import RelayClient
from relay_tui.app import all_actions
from relay_tui.dialogs import Confirm
from tests.supervisor.daemon import a_daemon
from tests.supervisor.inside import a_client, a_supervisor
from tests.supervisor.proxy import a_wire
from tests.tui.desk import Desk, a_dashboard
from tests.tui.letters import FLAKY, astray, refused

QUESTIONS = {"purge": "purge 1", "plan": "replay"}


def dialogs(desk: Desk) -> int:
    return len(desk.app.screen_stack) - 1


async def letters(client: RelayClient) -> int:
    return (await client.dead_letter_page(limit=1)).total


async def test_what_is_asked_for_without_a_connection_is_refused_and_does_not_come_up_on_another_screen(
    tmp_path: Path,
) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as desk:
        async with daemon.client() as client:
            await astray(client, 1)
        await desk.press("6")
        await desk.until("1 match")
        await desk.press("j")
        await daemon.kill()
        await desk.until("○ lost")
        await desk.press("X")
        await desk.until("purge: not connected: the")
        await desk.press("P")
        await desk.until("plan: not connected")
        assert not desk.app._doing
        await desk.press("2")
        await daemon.start()
        await desk.until("● live")
        await desk.press("6")
        await desk.until("1 match")
        assert dialogs(desk) == 0

        # A question that is open when the connection goes: the header says so, and the answer does nothing.
        await desk.press("X")
        await desk.until("Type purge 1 and press enter")
        await daemon.kill()
        await desk.until(lambda: "○ lost" in desk.lines()[0])
        await desk.confirm("purge 1")
        said = "marked for good: not connected: the connection is lost. Nothing was done"
        await desk.until(lambda: any(said in one.message for one in desk.app._notifications))
        await daemon.start()
        await desk.until("● live")
        async with daemon.client() as client:
            assert await letters(client) == 1


async def test_a_dead_connection_is_never_shown_as_live_over_a_question_about_a_plan(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as desk:
        async with daemon.client() as client:
            await refused(client, FLAKY)
        await desk.press("6")
        await desk.until("1 match")
        await desk.press("j", "P")
        await desk.until("Replay 1 of 1 dead letter")
        await desk.press("enter")
        await desk.until("Type replay and press enter")
        assert dialogs(desk) == 2
        await daemon.kill()
        await desk.until(lambda: "○ lost" in desk.lines()[0])
        assert "● live" not in desk.text()
        await daemon.start()
        await desk.until(lambda: "● live" in desk.lines()[0])


async def test_an_action_whose_answer_is_lost_is_not_asked_again(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client, 1)
        async with (
            a_wire(supervisor.socket) as (socket, wire),
            a_dashboard(supervisor, socket=socket) as desk,
        ):
            wire.cut_answers_to["deadletters.purge"] = 1
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "X")
            await desk.until("Type purge 1 and press enter")
            await desk.confirm("purge 1")
            await desk.until("look whether it")
            await desk.until("● live")
            assert wire.asked.count("deadletters.purge") == 1


async def test_a_question_does_not_come_up_on_another_screen(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "data") as supervisor, a_client(supervisor) as client:
        await astray(client, 1)
        async with a_wire(supervisor.socket) as (socket, wire), a_dashboard(supervisor, socket=socket) as desk:
            await desk.press("6")
            await desk.until("1 match")
            wire.hold_answers_to.add("deadletters.plan")
            await desk.press("j", "X", "2")
            wire.hold_answers_to.clear()
            wire.held.set()
            await desk.until("the screen was left")
            assert dialogs(desk) == 0


@pytest.mark.parametrize("name", QUESTIONS)
async def test_no_key_of_a_screen_answers_a_question(tmp_path: Path, name: str) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await refused(client, FLAKY)
        async with a_dashboard(supervisor) as desk:
            await desk.press("6")
            await desk.until("1 match")
            await desk.press("j", "X" if name == "purge" else "P")
            if name == "plan":
                await desk.until("Replay 1 of 1 dead letter")
                await desk.press("enter")
            await desk.until(f"Type {QUESTIONS[name]} and press enter")
            keys = {key for one in all_actions() for key in (one.key, *one.keys) if key is not None}
            if name == "plan":  # the same dialog: the keys that the screen behind it means by it
                keys &= {"P", "R", "X", "enter", "y"}
            for key in sorted(keys - {"escape", "ctrl+q", "tab", "shift+tab"}):
                await desk.press(key, "enter")  # alone: whatever it typed is taken out again
                assert isinstance(desk.app.screen, Confirm), key
                desk.app.screen.query_one(Input).clear()
            await desk.press("enter")
            await desk.until(f"that is not {QUESTIONS[name]}: nothing was done")
            assert await letters(client) == 1
            assert await client.replays() == []

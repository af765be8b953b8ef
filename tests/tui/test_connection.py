from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from pathlib import Path

import pytest

from tests.kit.daemon import a_daemon
from tests.tui.driver import a_dashboard

TARGET = "relay.agent.a"


async def test_a_lost_connection_is_told_and_what_was_there_survives(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        async with daemon.client() as client:
            for name in ("a", "b", "c"):
                await client.register_endpoint(f"relay.agent.{name}")
                await client.publish(f"relay.agent.{name}", 1, sender="relay.agent.x")
        await tui.press("2")
        await tui.until("relay.agent.c")
        await tui.press("j")
        await tui.until("▶ .*relay.agent.b")

        await daemon.kill()
        await tui.until("STALE: the connection is lost")
        assert "relay.agent.c" in tui.text()
        assert "○ lost" in tui.lines()[0]

        await daemon.start()
        await tui.until("● live")
        await tui.until(lambda: "STALE" not in tui.text())
        async with daemon.client() as client:
            for name in ("a", "b", "c"):
                await client.publish(f"relay.agent.{name}", 1, sender="relay.agent.x")
        await tui.until("▶ .*relay.agent.b")


async def test_a_supervisor_that_does_not_answer_is_told(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
        await tui.until("● live")
        daemon.send(signal.SIGSTOP)
        await tui.until("STALE: the supervisor does not respond")
        assert "◌ silent" in tui.lines()[0]
        daemon.send(signal.SIGCONT)
        await tui.until("● live")


async def test_without_a_supervisor_one_is_offered_and_followed_once_it_is_there(tmp_path: Path) -> None:
    async with (
        a_daemon(tmp_path, started=False) as daemon,
        a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui,
    ):
        await tui.until("No supervisor is running")
        await tui.press("2")
        await tui.until("No supervisor is running")
        await daemon.start()
        await tui.until("● live")
        await tui.until(lambda: tui.view.NAME == "breakers")


async def test_a_command_of_another_screen_says_that_no_supervisor_is_running(tmp_path: Path) -> None:
    async with a_dashboard(None, socket=tmp_path / "s", data_dir=tmp_path) as tui:
        await tui.until("No supervisor is running")
        await tui.press(":")
        await tui.type("reset")
        await tui.press("enter")
        await tui.until("reset: no supervisor is running")


async def test_a_supervisor_is_started_on_request_and_outlives_the_dashboard(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, started=False) as daemon:
        async with a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
            await tui.until("No supervisor is running")
            await tui.press("S")
            await tui.until("● live")
        async with daemon.client() as client:
            await client.stop()
        assert (daemon.data_dir / "supervisor.log").stat().st_mode & 0o777 == 0o600


async def test_a_supervisor_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "mailboxes").write_text("in the way")
    async with a_dashboard(None, socket=tmp_path / "s", data_dir=tmp_path) as tui:
        await tui.until("No supervisor is running")
        await tui.press("S")
        await tui.until("did not start: cannot use")


async def test_a_socket_on_which_nobody_answers_is_told_as_such(tmp_path: Path) -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    with tempfile.TemporaryDirectory(prefix="relay-") as place:
        server = await asyncio.start_unix_server(say_nothing, f"{place}/s")
        async with server, a_dashboard(None, socket=f"{place}/s") as tui:
            await tui.until("the supervisor does not respond")
            assert "no alerts" not in tui.text()
            for writer in accepted:
                writer.close()  # from Python 3.12 on, a server waits for that


async def test_what_answers_nonsense_is_not_followed(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            id = json.loads(line).get("id")
            writer.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": {"hello": "\x1b]0;x\x07"}}).encode() + b"\n")
        writer.close()

    with tempfile.TemporaryDirectory(prefix="relay-") as place:
        server = await asyncio.start_unix_server(talk, f"{place}/s")
        async with server, a_dashboard(None, socket=f"{place}/s") as tui:
            await tui.until("The supervisor rejects this dashboard")
            await tui.until("unexpected response to")


async def test_read_only_starts_no_supervisor(tmp_path: Path) -> None:
    async with a_dashboard(None, socket=tmp_path / "s", data_dir=tmp_path, read_only=True) as tui:
        await tui.until("No supervisor is running")
        assert "start one now" not in tui.text()
        await tui.press("S")
        assert not (tmp_path / "supervisor.log").exists()


async def test_the_wrong_supervisor_is_not_shown(tmp_path: Path) -> None:
    async with (
        a_daemon(tmp_path) as daemon,
        a_dashboard(None, socket=daemon.socket, data_dir=tmp_path / "other") as tui,
    ):
        await tui.until("The supervisor rejects this dashboard")
        await tui.until("--socket")
        assert "start one now" not in tui.text()


async def test_a_token_that_is_not_known_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_daemon(tmp_path) as daemon:
        monkeypatch.setenv("RELAY_TOKEN", "not a token")
        async with a_dashboard(None, socket=daemon.socket, data_dir=daemon.data_dir) as tui:
            await tui.until("The supervisor rejects this dashboard")
            await tui.until("unknown token")

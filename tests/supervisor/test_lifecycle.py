"""The daemon starts once, stops in good order, and a killed one prevents nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest

from relay_core import NotFound, RelayCore, SupervisorUnavailable
from relay_core.client.client import RelayClient
from tests.kit.adapters import DIARY_PLUGIN
from tests.kit.bus import A, B
from tests.kit.daemon import OS, Daemon, a_daemon
from tests.kit.waiting import until


@asynccontextmanager
async def a_message_in_hand(daemon: Daemon) -> AsyncIterator[RelayClient]:
    """Delay the stop of a daemon: a client holds a message and does not answer."""
    async with daemon.client() as client:
        await client.register_endpoint(A)
        await client.publish(A, "held", sender=B)
        messages = await client.subscribe(A)
        await anext(messages)
        yield client


def write_unheard(path: Path, text: str) -> None:
    """Write to a file in a way that no watcher of its directory hears of."""
    other_name = path.parent.parent / f"other-name-of-{path.name}"
    os.link(path, other_name)
    other_name.write_text(text)
    other_name.unlink()


def lines(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.output().splitlines()]


def said(daemon: Daemon, text: str) -> bool:
    return any(text in line["event"] for line in lines(daemon))


# Starting


async def test_it_starts_answers_and_stops_with_0_and_logs_json(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            assert (await client.info()).pid == daemon.pid
        assert await daemon.stop() == 0
        assert not daemon.socket.exists()
        assert said(daemon, "is ready")
        assert {line["level"] for line in lines(daemon)} == {"info"}
        assert [line["event"] for line in lines(daemon)][-2:] == ["stopping", "stopped"]


@pytest.mark.parametrize(
    ("same_data", "same_socket"),
    [
        pytest.param(True, True, id="both the same"),
        pytest.param(True, False, id="the same data", marks=pytest.mark.slow),
        pytest.param(False, True, id="the same socket", marks=pytest.mark.slow),
    ],
)
async def test_a_second_one_names_the_first_and_harms_nothing(
    tmp_path: Path, same_data: bool, same_socket: bool
) -> None:
    async with a_daemon(tmp_path) as first:
        other = tmp_path / "other"
        other.mkdir(mode=0o700)
        path = first.socket if same_socket else first.socket.with_name("second.sock")
        second = Daemon(first.data_dir if same_data else other, path)
        second.log = tmp_path / "second.log"
        async with first.client() as client:
            await client.register_endpoint(A)
            await second.launch()
            assert await second.process.wait() == 1
            *before, line = lines(second)
            assert not (before and same_data)
            assert line["level"] == "error"
            assert line["event"].startswith("cannot start: ")
            if same_data:
                assert f"{first.pid}" in line["event"]
            else:
                assert f"{first.socket}" in line["event"]
                assert "is served by another supervisor" in line["event"]
            assert second.socket.exists() == same_socket
            assert (await client.publish(A, 1, sender=B)).delivered_to == 1
        async with first.client() as client:
            assert (await client.info()).pid == first.pid
            assert len(await client.inbox(A)) == 1
        assert await first.stop() == 0
        async with RelayCore(first.data_dir) as relay:
            assert len(await relay.inbox(A)) == 1


async def test_what_a_killed_one_left_prevents_nothing(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            await client.register_endpoint(A)
            await client.publish(A, "still here", sender=B)
        await daemon.kill()
        assert daemon.socket.is_socket()
        assert (daemon.data_dir / "relay.lock").read_text().strip() == f"{daemon.pid}"
        with pytest.raises(SupervisorUnavailable, match="is gone"):
            await daemon.client().__aenter__()
        await daemon.start()
        assert S_IMODE(daemon.socket.lstat().st_mode) == 0o600
        async with daemon.client() as client:
            assert (await client.info()).pid == daemon.pid
            assert [envelope.payload for envelope in await client.inbox(A)] == ["still here"]


async def test_a_bad_config_prevents_a_start_in_one_clear_line(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, {"durabilty": "os"}, started=False) as daemon:
        await daemon.launch()
        assert await daemon.process.wait() == 1
        (line,) = lines(daemon)
        assert line["event"].startswith("cannot start: ")
        assert "unknown key 'durabilty', did you mean 'durability'?" in line["event"]
        assert not daemon.socket.exists()


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.register_endpoint(A)
        for payload in range(20):
            await client.publish(A, payload, sender=B)
        daemon.send(number)
        assert await daemon.process.wait() == 0
        assert not daemon.socket.exists()
        for state, count in (("new", 20), ("cur", 0), ("tmp", 0), ("failed", 0)):
            assert len(list(daemon.data_dir.glob(f"mailboxes/*/{state}/*"))) == count
        assert said(daemon, "stopped")


@pytest.mark.parametrize("second", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(tmp_path: Path, second: signal.Signals) -> None:
    async with a_daemon(tmp_path) as daemon, a_message_in_hand(daemon):
        daemon.send(signal.SIGTERM)
        await until(lambda: said(daemon, "stopping"))
        await until(lambda: not daemon.socket.exists())
        assert daemon.process.returncode is None
        daemon.send(second)
        assert await daemon.process.wait() == 128 + second


STOPPED_AMID_ANOTHER_SIGNAL = """
import signal

class Stopped(DiaryAdapter):
    async def start(self, context):
        signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))
        await super().start(context)

adapter = Stopped
"""


async def test_one_signal_is_not_taken_for_two_if_another_comes_with_it(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, started=False) as daemon:
        plugin = daemon.data_dir / "stopped.py"
        plugin.write_text(DIARY_PLUGIN.read_text() + STOPPED_AMID_ANOTHER_SIGNAL)
        entry = {"id": "d", "path": "stopped.py", "config": {"diary": str(tmp_path / "diary")}}
        (daemon.data_dir / "adapters.json").write_text(json.dumps({"adapters": [entry]}))
        for path in (plugin, daemon.data_dir / "adapters.json"):
            path.chmod(0o600)
        await daemon.start()
        async with a_message_in_hand(daemon) as client:
            await client.info()
            daemon.send(signal.SIGUSR1)
            await until(lambda: said(daemon, "stopping") or daemon.process.returncode is not None)
            assert (await client.info()).pid == daemon.pid
        assert await daemon.process.wait() == 0, daemon.output()


async def test_what_a_second_signal_interrupts_is_parked_at_the_next_start(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon:
        async with a_message_in_hand(daemon) as client:
            daemon.send(signal.SIGTERM)
            await until(lambda: not daemon.socket.exists())
            daemon.send(signal.SIGTERM)
            await daemon.process.wait()
            await daemon.start()
            (letter,) = await client.dead_letters()
        assert letter.code == "interrupted"


# Reloading


async def test_sighup_reads_the_operators_files_again(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, started=False) as daemon:
        (daemon.data_dir / "plugins").mkdir(mode=0o700)
        plugin = daemon.data_dir / "plugins" / "diary.py"
        shutil.copyfile(DIARY_PLUGIN, plugin)
        plugin.chmod(0o600)
        for name, text in (("access-rules.json", "[]"), ("adapters.json", '{"adapters": []}')):
            (daemon.data_dir / name).write_text(text)
            (daemon.data_dir / name).chmod(0o600)
        await daemon.start()
        entry = {"id": "d", "path": "plugins/diary.py", "config": {"diary": str(tmp_path / "diary")}}
        rule = {"from": "relay.agent.banned", "to": ">", "action": "deny"}
        config = {**OS, "reliability": {"rateLimit": {"maxPerWindow": 7}}}
        write_unheard(daemon.data_dir / "config.json", json.dumps(config))
        write_unheard(daemon.data_dir / "access-rules.json", json.dumps([rule]))
        write_unheard(daemon.data_dir / "adapters.json", json.dumps({"adapters": [entry]}))
        async with daemon.client() as client:
            assert (await client.config()).config["reliability"]["rateLimit"]["maxPerWindow"] == 100
            daemon.send(signal.SIGHUP)
            await until(lambda: said(daemon, "files were reloaded"))
            assert (await client.config()).config["reliability"]["rateLimit"]["maxPerWindow"] == 7
            assert [entry.to_wire() for entry in (await client.access_rules()).rules] == [{**rule, "priority": 0}]
            assert [adapter.id for adapter in (await client.adapters()).adapters] == ["d"]
            assert (await client.status()).problems == []


async def test_a_bad_config_at_sighup_keeps_the_last_good_one_and_is_shown(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        config = daemon.data_dir / "config.json"
        write_unheard(config, '{"durability": "os", "budget": {"maxHop": 3}}')
        daemon.send(signal.SIGHUP)
        await until(lambda: said(daemon, "unknown key 'maxHop', did you mean 'maxHops'?"))
        (problem,) = (await client.status()).problems
        assert "maxHop" in problem
        assert (await client.config()).config["budget"]["maxHops"] == 5
        write_unheard(config, '{"durability": "os", "budget": {"maxHops": 3}}')
        daemon.send(signal.SIGHUP)
        async with asyncio.timeout(30):
            while (await client.status()).problems:
                pass
        assert (await client.config()).config["budget"]["maxHops"] == 3


async def test_a_sighup_while_it_starts_or_stops_does_no_harm(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, started=False) as daemon:
        await daemon.launch()
        await until(lambda: (daemon.data_dir / "relay.lock").exists())  # it listens to signals by then
        for _ in range(5):
            daemon.send(signal.SIGHUP)
        await daemon.ready()
        async with a_message_in_hand(daemon) as client:
            daemon.send(signal.SIGTERM)
            await until(lambda: not daemon.socket.exists())
            daemon.send(signal.SIGHUP)
            assert (await client.info()).pid == daemon.pid
        while daemon.process.returncode is None:  # to the very end, whatever has been closed by then
            daemon.send(signal.SIGHUP)
            await asyncio.sleep(0.001)
        assert await daemon.process.wait() == 0
        assert {line["level"] for line in lines(daemon)} == {"info"}


# The service manager


class Manager:
    """A service manager's end of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    async def until(self, word: str) -> list[str]:
        """Return the lines of the next datagram that has a line."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while True:
                found = (await loop.sock_recv(self._socket, 4096)).decode().split("\n")
                if word in found:
                    return found

    def heard(self) -> list[str]:
        """Return the first line of every datagram that waits."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(4096).decode().split("\n")[0])
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    directory = Path(tempfile.mkdtemp(prefix="relay-"))
    found = Manager(directory / "notify")
    yield found
    found.close()
    shutil.rmtree(directory)


async def test_the_service_manager_is_told_everything(tmp_path: Path, manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "100000"}
    async with a_daemon(tmp_path, started=False, environment=environment) as daemon:
        await daemon.launch()
        _, status = await manager.until("READY=1")
        assert status.startswith("STATUS=0 endpoints, 0 connections")
        async with daemon.client() as client:  # ready means that it answers
            await client.register_endpoint(A)
        for _ in range(3):
            assert await manager.until("WATCHDOG=1") == ["WATCHDOG=1"]
        daemon.send(signal.SIGHUP)
        _, since = await manager.until("RELOADING=1")
        assert since.startswith("MONOTONIC_USEC=")
        _, status = await manager.until("READY=1")
        assert status.startswith("STATUS=1 endpoint, ")
        async with a_message_in_hand(daemon):
            daemon.send(signal.SIGTERM)
            assert "STATUS=stopping" in await manager.until("STOPPING=1")
            assert await manager.until("WATCHDOG=1")  # also while it finishes
        assert await daemon.process.wait() == 0


@pytest.mark.slow
async def test_no_watchdog_without_being_asked_for_one(tmp_path: Path, manager: Manager) -> None:
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    async with a_daemon(tmp_path, started=False, environment=environment) as daemon:
        await daemon.launch()
        await manager.until("READY=1")
        assert await daemon.stop() == 0
        assert manager.heard() == ["STOPPING=1"]


async def test_a_delivery_that_ends_while_it_stops_is_finished(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon:
        async with a_message_in_hand(daemon) as client:
            daemon.send(signal.SIGTERM)
            await until(lambda: not daemon.socket.exists())
            with pytest.raises(NotFound):
                await client.call("ack", {"deliveryId": "no such"})  # acknowledgements are still taken
        assert await daemon.process.wait() == 0
        assert list(daemon.data_dir.glob("mailboxes/*/*/*.json")) == []

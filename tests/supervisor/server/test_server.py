"""The socket: made so that only its user can connect, one supervisor to a place, and descriptors that run out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.errors import StorageError
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw, kind
from tests.kit.waiting import until

NOBODY_UID = 65534
OS = RelayConfig(durability="os")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

STRANGER = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
connected = socket.socket(socket.AF_UNIX)
try:
    connected.connect(sys.argv[1])
except PermissionError:
    print("not let in")
else:
    try:
        connected.send(b'{"jsonrpc": "2.0", "id": 1, "method": "server.info"}\\n')
    except BrokenPipeError:
        pass
    print(connected.makefile().readline())
"""
LIMITED = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a directory with a short path."""
    path = Path(tempfile.mkdtemp(prefix="relay-"))
    yield path
    shutil.rmtree(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


async def refused(data_dir: Path, path: Path) -> StorageError:
    """Return why a supervisor does not start; everything it had done must be undone."""
    with pytest.raises(StorageError) as raised:
        async with Supervisor(data_dir, path, config=OS):
            pass
    return raised.value


async def works(data_dir: Path, path: Path) -> None:
    async with Supervisor(data_dir, path, config=OS), Raw(path) as raw:
        await raw.call("server.ping")


# Who can connect


async def test_the_socket_is_its_users_alone_in_a_directory_made_so(data_dir: Path, place: Path) -> None:
    path = place / "made" / "too" / "relay.sock"
    before = os.umask(0)
    try:
        async with Supervisor(data_dir, path, config=OS):
            assert stat.S_ISSOCK(path.lstat().st_mode)
            assert mode(path) == 0o600
            assert mode(path.parent) == 0o700
            assert mode(Path(f"{path}.lock")) == 0o600
    finally:
        os.umask(before)
    assert not path.exists()


@pytest.mark.parametrize("allowed", [0o700, 0o755, 0o1777], ids=oct)
async def test_a_directory_that_others_cannot_change_is_used_as_it_is(
    data_dir: Path, place: Path, allowed: int
) -> None:
    os.chmod(place, allowed)
    await works(data_dir, place / "relay.sock")
    assert mode(place) == allowed


@pytest.mark.parametrize("insecure", [0o777, 0o770, 0o722], ids=oct)
async def test_a_directory_that_others_can_write_to_is_refused_with_the_remedy(
    data_dir: Path, place: Path, insecure: int
) -> None:
    os.chmod(place, insecure)
    path = place / "relay.sock"
    error = await refused(data_dir, path)
    assert error.code == "insecure_socket"
    assert f"chmod 700 {place}" in error.message
    assert os.listdir(place) == []
    os.chmod(place, 0o700)
    await works(data_dir, path)


@as_root
async def test_a_directory_of_another_user_is_refused(data_dir: Path, place: Path) -> None:
    os.chown(place, NOBODY_UID, NOBODY_UID)
    error = await refused(data_dir, place / "relay.sock")
    assert error.code == "insecure_socket"
    assert f"uid {NOBODY_UID}" in error.message
    assert "--socket" in error.message


@as_root
@pytest.mark.parametrize("opened", [False, True], ids=["as it is", "opened by mistake"])
async def test_a_process_of_another_user_is_turned_away(tmp_path: Path, opened: bool) -> None:
    async with a_daemon(tmp_path) as daemon:
        daemon.socket.parent.chmod(0o755)
        if opened:
            daemon.socket.chmod(0o666)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STRANGER, str(daemon.socket), str(NOBODY_UID)), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        if opened:
            [answer] = told.decode().split("\n")[:-2]
            assert kind(json.loads(answer)) == ("RelayError", "refused")
            assert f"uid {os.geteuid()} only" in answer
            assert f"uid {NOBODY_UID}" in daemon.output()
        else:
            assert told == b"not let in\n"
        async with daemon.client() as client:
            assert (await client.status()).connections == 1


# Where it can be


async def test_a_path_too_long_for_a_socket_is_refused_with_the_remedy(data_dir: Path, place: Path) -> None:
    error = await refused(data_dir, place / ("x" * 120))
    assert error.code == "socket_path_too_long"
    assert "--socket" in error.message
    await works(data_dir, place / "relay.sock")


@pytest.mark.parametrize("what", ["file", "directory", "link"])
async def test_what_is_no_socket_is_left_alone(data_dir: Path, place: Path, what: str) -> None:
    path, other = place / "relay.sock", place / "other"
    other.write_text("mine")
    match what:
        case "file":
            path.write_text("mine")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to(other)
    before = path.lstat()
    error = await refused(data_dir, path)
    assert error.code == "socket_in_use"
    assert str(path) in error.message
    assert "--socket" in error.message
    assert path.lstat() == before
    assert other.read_text() == "mine"
    await works(data_dir, place / "another.sock")


# Descriptors


async def start_with(daemon: Daemon, files: int) -> None:
    """Start a supervisor that may have so many files open."""
    with daemon.log.open("ab") as log:
        daemon.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", LIMITED, str(files), "-m", "relay_supervisor", "run"),
            *("--data-dir", str(daemon.data_dir), "--socket", str(daemon.socket)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    await daemon.ready()


@pytest.mark.parametrize("files", [256, 48], ids=["connections are refused first", "nothing can be opened"])
async def test_when_descriptors_run_out_those_who_are_in_go_on_and_nothing_is_lost(tmp_path: Path, files: int) -> None:
    reliability = {**UNLIMITED["reliability"], "circuitBreaker": {"cooldownMs": 1_000}}  # a full disk opens breakers
    async with a_daemon(tmp_path, {**UNLIMITED, "reliability": reliability}, started=False) as daemon:
        await start_with(daemon, files)
        async with Raw(daemon.socket) as raw:
            await raw.call("endpoints.register", subject=A)
            stored = [await publish(raw)]
            opened = []
            for _ in range(files):
                connection = socket.socket(socket.AF_UNIX)
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    connection.connect(str(daemon.socket))
                opened.append(connection)
            for _ in range(100):
                stored.append(await publish(raw))
            assert (await raw.call("server.info"))["pid"] == daemon.pid
            for connection in opened:
                connection.close()

            async def heals() -> bool:
                stored.append(await publish(raw))
                return stored[-1] is not None

            await until(heals)
            async with Raw(daemon.socket) as late:  # others are let in again
                await late.call("server.ping")
            found = [message["id"] for message in (await raw.call("inbox.peek", subject=A, limit=1000))["messages"]]
            acknowledged = [id for id in stored if id is not None]
            assert found == acknowledged
            if files == 256:
                assert None not in stored  # enough was left for the bus itself
        assert await daemon.stop() == 0
        async with RelayCore(daemon.data_dir) as relay:
            assert [envelope.id for envelope in await relay.inbox(A, limit=1000)] == acknowledged


async def publish(raw: Raw) -> str | None:
    """Publish, and return the message's id, or None if the disk refused."""
    asked = raw.ask("publish", subject=A, **{"from": "relay.agent.s"}, payload={"content": "hi"})
    answer = await raw.answer(asked)
    if "error" in answer:
        assert kind(answer)[0] == "StorageError"
        return None
    result = answer["result"]
    return str(result["messageId"]) if result["deliveredTo"] else None

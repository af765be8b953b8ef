"""Clients of a socket that another user serves: they send not one byte, and say who it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay_core.client.client import RelayClient
from relay_core.errors import SupervisorUnavailable
from relay_supervisor.agents.light.sync_connection import Address, SyncConnection, Unreachable
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import PATIENCE_SECS

STRANGER = 12345
TOKEN = "relay_do-not-tell"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

# It serves one client, and says how many bytes came before that one hung up.
SERVER = """
import os, socket, sys
listening = socket.socket(socket.AF_UNIX)
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listening.listen()
print("listening", flush=True)
connection, _ = listening.accept()
received = b""
try:
    while data := connection.recv(65536):
        received += data
except ConnectionResetError:
    pass
print(len(received), flush=True)
"""


class Stranger:
    """Another user's process that serves a socket."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path = path
        self._process = process

    def received(self) -> int:
        """Return how many bytes its client has sent."""
        return int(self._process.communicate(timeout=PATIENCE_SECS)[0])


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    place = Path(tempfile.mkdtemp(prefix="relay-"))
    place.chmod(0o1777)
    path = place / "relay.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path), str(STRANGER)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        yield Stranger(path, process)
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(place)


async def test_a_client_says_nothing_to_another_users_server(stranger: Stranger, data_dir: Path) -> None:
    with pytest.raises(SupervisorUnavailable, match=f"served by uid {STRANGER}, not by you") as caught:
        async with RelayClient(stranger.path, data_dir=data_dir, token=TOKEN):
            pass
    assert (caught.value.code, caught.value.socket) == ("foreign_supervisor", str(stranger.path))
    assert stranger.received() == 0


def test_the_light_client_says_nothing_to_another_users_server(stranger: Stranger, data_dir: Path) -> None:
    address = Address(str(data_dir), str(stranger.path))
    with pytest.raises(Unreachable, match=f"served by uid {STRANGER}, not by you"):
        SyncConnection.open(address, agent="relay.agent.a", token=TOKEN, client="test")
    assert stranger.received() == 0


COMMANDS = {
    "relay": ["relay_supervisor.cli", "status"],
    "relay-supervisor status": ["relay_supervisor", "status"],
    "relay-supervisor stop": ["relay_supervisor", "stop"],
    "relay-tui": ["relay_tui", "--once"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_with_3_and_says_who_serves_it(stranger: Stranger, data_dir: Path, command: str) -> None:
    module, *rest = COMMANDS[command]
    environment = {**os.environ, "RELAY_TOKEN": TOKEN}
    places = ["--socket", str(stranger.path), "--data-dir", str(data_dir)]
    ran = subprocess.run(
        [sys.executable, "-m", module, *rest, *places],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECS,
    )
    assert ran.returncode == 3, ran.stderr
    assert f"served by uid {STRANGER}" in ran.stderr
    assert stranger.received() == 0


async def test_another_uid_can_be_named(stranger: Stranger, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_SERVER_UID", f"{STRANGER}")
    SyncConnection.open(
        Address(str(data_dir), str(stranger.path)), agent="relay.agent.a", token=TOKEN, client="test"
    ).close()
    assert stranger.received() > 0


async def test_ones_own_is_talked_to(data_dir: Path) -> None:
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as client:
        assert (await client.status()).connections == 1

"""The light connection: against a real supervisor, and against whoever else may sit on a socket."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_supervisor.agents.light.sync_connection import (
    MAX_FRAME,
    Address,
    Refused,
    SyncConnection,
    Unreachable,
    find_token,
)
from tests.kit.bus import A, B
from tests.kit.supervisor import a_client, a_supervisor


@contextmanager
def a_listener(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[Address]:
    """Listen on a socket and do something with the first who connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(str(path.parent), str(path))
        thread.join(10)


def open_line(address: Address, token: str = "t") -> SyncConnection:
    return SyncConnection.open(address, agent=A, token=token, client="test")


async def test_it_asks_a_real_supervisor_as_the_agent_whose_token_it_finds(data_dir: Path) -> None:
    async with a_supervisor(data_dir) as supervisor, a_client(supervisor) as operator:
        await operator.add_agent(A)
        address = Address(str(data_dir), str(supervisor.socket))

        def talk() -> Any:
            line = open_line(address, find_token(address, A))
            sent = line.ask("publish", {"subject": A, "from": A, "payload": {"content": "héllo"}}, 10)
            with pytest.raises(Refused) as refused:
                line.ask("publish", {"subject": A, "from": B, "payload": 1}, 10)
            assert (refused.value.code, refused.value.data["error"]) == ("sender_not_yours", "AccessDenied")
            found = line.ask("inbox.peek", {"subject": A}, 10)
            line.close()
            return sent["messageId"], found

        message_id, found = await asyncio.to_thread(talk)
        assert [(one["id"], one["payload"]) for one in found["messages"]] == [(message_id, {"content": "héllo"})]


async def test_a_hello_that_is_refused_is_told_by_whatever_is_asked_next(data_dir: Path) -> None:
    async with a_supervisor(data_dir) as supervisor:
        line = await asyncio.to_thread(open_line, Address(str(data_dir), str(supervisor.socket)), "wrong")
        with pytest.raises(Refused, match="unknown token"):
            await asyncio.to_thread(line.ask, "server.ping", {}, 10)
        line.close()


def test_without_a_supervisor_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="relay-supervisor run"):
        open_line(Address(str(tmp_path), str(tmp_path / "s")))


def test_without_a_token_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAY_TOKEN", raising=False)
    address = Address(str(tmp_path), "s")
    with pytest.raises(Unreachable, match=r"relay agent add relay\.agent\.a"):
        find_token(address, A)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / f"{A}.token").write_text("from-the-file\n")
    assert find_token(address, A) == "from-the-file"
    monkeypatch.setenv("RELAY_TOKEN", "from-the-environment")
    assert find_token(address, A) == "from-the-environment"
    assert find_token(address, A, "given") == "given"


def read_line(connection: socket.socket) -> Any:
    return json.loads(connection.makefile("rb").readline())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param(b"", "closed the connection", id="it-hangs-up"),
        pytest.param(b"HTTP/1.1 400\n", "not a supervisor", id="it-speaks-no-json"),
        pytest.param(b"[1]\n", "not a supervisor", id="it-speaks-another-json"),
        pytest.param(b"[" * 100_000 + b"\n", "not a supervisor", id="it-speaks-too-deep-a-json"),
        pytest.param(b"x" * (MAX_FRAME + 1), "more than", id="it-never-ends"),
    ],
)
def test_whoever_else_sits_there_is_not_believed(tmp_path: Path, answer: bytes, text: str) -> None:
    def reply(connection: socket.socket) -> None:
        read_line(connection)
        connection.sendall(answer)

    with a_listener(tmp_path / "s", reply) as address:
        line = open_line(address)
        with pytest.raises(Unreachable, match=text):
            line.ask("server.ping", {}, 10)
        line.close()


def test_an_answer_is_put_together_from_pieces_and_found_among_others(tmp_path: Path) -> None:
    def reply(connection: socket.socket) -> None:
        read_line(connection)
        for piece in (b'{"method":"signal","params":{}}\n{"id":7,"result":0}\n\n{"id"', b":2,", b'"result":{"a":1}}\n'):
            connection.sendall(piece)
        connection.recv(1)

    with a_listener(tmp_path / "s", reply) as address:
        line = open_line(address)
        assert line.ask("server.ping", {}, 10) == {"a": 1}
        line.close()


def stay(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_who_does_not_answer_is_not_waited_for_longer(tmp_path: Path) -> None:
    with a_listener(tmp_path / "s", stay) as address:
        line = open_line(address)
        with pytest.raises(Unreachable, match=r"not answered within 0\.05 s"):
            line.ask("server.ping", {}, 0.05)
        line.close()


def test_what_does_not_fit_into_a_frame_is_not_sent(tmp_path: Path) -> None:
    with a_listener(tmp_path / "s", stay) as address:
        line = open_line(address)
        with pytest.raises(Refused, match="do not fit") as refused:
            line.ask("publish", {"payload": "x" * MAX_FRAME}, 10)
        assert refused.value.code == "frame_too_large"
        line.close()


def test_a_reader_that_is_slow_gets_everything_in_the_end(tmp_path: Path) -> None:
    sizes: list[int] = []

    def reply(connection: socket.socket) -> None:
        file = connection.makefile("rb")
        file.readline()
        sizes.append(len(file.readline()))
        connection.sendall(b'{"id":2,"result":"got it"}\n')

    with a_listener(tmp_path / "s", reply) as address:
        line = open_line(address)
        assert line.ask("publish", {"payload": "x" * 3_000_000}, 30) == "got it"
        line.close()
    assert sizes[0] > 3_000_000

"""A client's connection: few system calls, one timer for all deadlines, and no trust in what is not an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from math import inf
from typing import Any

import orjson
import pytest

from relay_core.client.connection import Connection, ConnectionLost
from relay_core.errors import NotFound
from relay_core.protocol.frames import encode_error, encode_notification, encode_result


class RecordingTransport(asyncio.Transport):
    """Records each write of a connection."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    @property
    def frames(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in b"".join(self.writes).splitlines()]


class Peer:
    """The other end of a connection, which collects the notifications and acknowledges messages."""

    def __init__(self, own: socket.socket) -> None:
        self.transport = RecordingTransport(own)
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.connection = Connection(self._on_note)
        self.connection.connection_made(self.transport)

    def send(self, *lines: bytes) -> None:
        """Send lines that arrive in one read."""
        data = b"".join(lines)
        self.connection.get_buffer(len(data))[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def _on_note(self, connection: Connection, method: str, params: dict[str, Any]) -> None:
        self.notes.append((method, params))
        if method == "message":
            connection.ack(params["deliveryId"], more_follow=False)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    own, other = socket.socketpair()
    with own, other:
        yield Peer(own)


def message(number: int) -> bytes:
    return encode_notification("message", {"subscriptionId": "s", "deliveryId": str(number)})


def in_secs(secs: float) -> float:
    """Return a deadline."""
    return asyncio.get_running_loop().time() + secs


async def turn_of_the_loop() -> None:
    await asyncio.sleep(0)


# Writing


async def test_a_single_request_is_sent_immediately(peer: Peer) -> None:
    for id in (1, 2, 3):
        answer = peer.connection.ask("server.ping", {})
        assert len(peer.transport.writes) == id
        peer.send(encode_result(id, {}))
        assert await answer == {}


async def test_the_requests_of_one_turn_are_sent_in_order_in_two_writes(peer: Peer) -> None:
    for _ in range(64):
        peer.connection.ask("server.ping", {})
    await turn_of_the_loop()
    assert len(peer.transport.writes) == 2
    assert [frame["id"] for frame in peer.transport.frames] == list(range(1, 65))


async def test_requests_that_follow_from_one_read_are_sent_together(peer: Peer) -> None:
    answers = [peer.connection.ask("server.ping", {}) for _ in range(64)]
    await turn_of_the_loop()
    peer.transport.writes.clear()
    peer.send(*[encode_result(id, {}) for id in range(1, 65)])
    assert all(answer.done() for answer in answers)
    for _ in range(64):
        peer.connection.ask("server.ping", {})
    await turn_of_the_loop()
    assert [frame["id"] for frame in peer.transport.frames] == list(range(65, 129))
    assert len(peer.transport.writes) == 1


async def test_a_single_message_is_acknowledged_immediately(peer: Peer) -> None:
    peer.send(message(1))
    assert [frame["params"] for frame in peer.transport.frames] == [{"deliveryId": "1"}]


async def test_the_acks_of_messages_that_arrived_together_leave_together(peer: Peer) -> None:
    peer.send(*[message(number) for number in range(10)])
    await turn_of_the_loop()
    assert [frame["params"]["deliveryId"] for frame in peer.transport.frames] == [str(n) for n in range(10)]
    assert len(peer.transport.writes) == 1


async def test_lines_that_wait_for_the_end_of_the_turn_are_sent_before_the_close(peer: Peer) -> None:
    peer.connection.ack("1", more_follow=True)
    peer.connection.notify("fail", {"deliveryId": "2", "reason": "r"})
    assert peer.transport.writes == []
    peer.connection.close()
    assert [frame["method"] for frame in peer.transport.frames] == ["ack", "fail"]
    assert peer.transport.closed


# Deadlines


async def test_a_request_fails_at_its_deadline_and_the_others_go_on(peer: Peer) -> None:
    unlimited = peer.connection.ask("server.ping", {})
    distant = peer.connection.ask("server.ping", {}, deadline=in_secs(60))
    for secs in (0.02, 0.01, -1):  # one after the other, whichever was asked first
        with pytest.raises(TimeoutError):
            await peer.connection.ask("server.ping", {}, deadline=in_secs(secs))
    first, second = (peer.connection.ask("server.ping", {}, deadline=in_secs(secs)) for secs in (0.05, 0.01))
    with pytest.raises(TimeoutError):
        await second
    assert not first.done()
    with pytest.raises(TimeoutError):
        await first
    assert not unlimited.done()
    assert not distant.done()
    peer.send(encode_result(1, "a"), encode_result(2, "b"))
    assert (await unlimited, await distant) == ("a", "b")


async def test_a_request_that_was_answered_does_not_fail_at_its_deadline(peer: Peer) -> None:
    early = peer.connection.ask("server.ping", {}, deadline=in_secs(0.01))
    peer.send(encode_result(1, "a"))
    with pytest.raises(TimeoutError):
        await peer.connection.ask("server.ping", {}, deadline=in_secs(0.02))
    assert await early == "a"


async def test_an_answer_after_the_deadline_is_passed_on(peer: Peer) -> None:
    late: list[Any] = []
    with pytest.raises(TimeoutError):
        await peer.connection.request("inbox.claim", {}, late.append, deadline=in_secs(0.01))
    peer.send(encode_result(1, {"messages": []}))
    assert late == [{"messages": []}]


async def test_a_request_that_waits_for_room_fails_at_its_deadline(peer: Peer) -> None:
    peer.connection.pause_writing()
    with pytest.raises(TimeoutError):
        await peer.connection.request("server.ping", {}, deadline=in_secs(0.01))
    assert peer.transport.writes == []


async def test_a_lost_connection_fails_every_request_before_its_deadline(peer: Peer) -> None:
    answers = [peer.connection.ask("server.ping", {}, deadline=deadline) for deadline in (in_secs(60), inf)]
    peer.connection.connection_lost(None)
    for answer in answers:
        with pytest.raises(ConnectionLost):
            await answer


# Reading


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 400 Bad Request",
        b"[]",
        b"1",
        b"{}",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
        b'{"jsonrpc":"2.0","id":1.0,"result":{}}',
        b'{"jsonrpc":"2.0","id":[1],"result":{}}',
        b'{"jsonrpc":"2.0","id":"1","result":{}}',
        b'{"jsonrpc":"2.0","id":2,"result":{}}',
        b'{"jsonrpc":"2.0","method":"message","params":[]}',
        b'{"jsonrpc":"2.0","method":"message"}',
    ],
)
async def test_what_is_no_answer_is_ignored(peer: Peer, line: bytes) -> None:
    answer = peer.connection.ask("server.ping", {})
    peer.send(line + b"\n")
    assert not answer.done()
    assert peer.notes == []
    peer.send(encode_error(1, NotFound("gone", what="x")))
    with pytest.raises(NotFound, match="gone"):
        await answer


async def test_a_frame_may_take_many_reads(peer: Peer) -> None:
    answer = peer.connection.ask("server.ping", {})
    line = encode_result(1, "x" * 300_000)
    size = len(peer.connection.get_buffer(-1))
    for start in range(0, len(line), size):
        peer.send(line[start : start + size])
    assert await answer == "x" * 300_000

"""Misbehaving clients: each is bounded, affects no other client, and its in-flight messages are dead-lettered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from relay_core.config import BackpressureConfig, RateLimitConfig, RelayConfig, ReliabilityConfig
from relay_core.core import RelayCore
from relay_core.messages.dead_letter import DeadLetter
from relay_core.protocol.frames import MAX_FRAME
from relay_supervisor.server import connection as connection_module
from relay_supervisor.server import line_deadline
from relay_supervisor.server import socket_server as server_module
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import A
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw, kind, request
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until

MB = 1024 * 1024
GROWTH = 20 * MB
"""By how much a client without manners may make the supervisor grow."""
FREE = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(max_mailbox_size=1_000_000)
    ),
)

CONSUMER = """
import json, socket, sys
connected = socket.socket(socket.AF_UNIX)
connected.connect(sys.argv[1])
lines = connected.makefile("rw")
for number, line in enumerate(json.loads(sys.argv[2])):
    method, params = line
    lines.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\\n")
    lines.flush()
for line in lines:
    sys.stdout.write(line)
    sys.stdout.flush()
"""
"""A client in a separate process, which sends requests, prints the answers, and stays."""

pytestmark = pytest.mark.bus(FREE, endpoints=[A])


def memory(daemon: Daemon) -> int:
    """Return how much memory a process has, in bytes."""
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def deaf(path: Path, data: bytes) -> socket.socket:
    """Connect, send as much as the other side takes, and read nothing."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(path))
    connected.setblocking(False)
    push(connected, data)
    return connected


def push(connected: socket.socket, data: bytes) -> bytes:
    """Send as much as the other side takes, and return the rest."""
    with suppress(BlockingIOError):
        while data:
            data = data[connected.send(data) :]
    return data


async def letters(relay: RelayCore, count: int) -> list[DeadLetter]:
    async def parked() -> bool:
        return len(await relay.dead_letters()) >= count

    await until(parked)
    return await relay.dead_letters()


async def test_a_client_that_asks_for_much_and_never_reads_costs_no_memory_and_no_other_client(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, UNLIMITED) as daemon, daemon.client() as client:
        await client.register_endpoint(A)
        for _ in range(20):
            await client.publish(A, {"content": "x" * 100_000}, sender="relay.agent.s")
        assert len(await client.inbox(A, limit=50)) == 20
        before = most = memory(daemon)
        rest = b"".join(request("inbox.peek", {"subject": A, "limit": 50}, id) for id in range(10_000))
        connected = deaf(daemon.socket, b"")
        try:
            for _ in range(300):
                rest = push(connected, rest)
                await client.publish("relay.agent.nobody", {"content": "hi"}, sender="relay.agent.s")
                most = max(most, memory(daemon))
        finally:
            connected.close()
        assert rest  # it was not read from any further
        assert most - before < GROWTH
        assert (await client.info()).pid == daemon.pid


async def test_large_requests_are_under_way_a_few_at_a_time(data_dir: Path) -> None:
    config = FREE.model_copy(update={"durability": "fsync"})  # so that each waits for the disk
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as raw:
        await raw.call("endpoints.register", subject=A)
        [connection] = supervisor.context.connections
        most = 0
        async with asyncio.TaskGroup() as group:
            group.create_task(ask_for_much(raw))
            for _ in range(60):
                assert "result" in (await raw.frame() or {})
                most = max(most, connection.in_flight)
        assert most <= 7  # of 900 kB each


async def ask_for_much(raw: Raw) -> None:
    for _ in range(60):
        raw.ask("publish", subject=A, **{"from": "relay.agent.s"}, payload={"content": "x" * 900_000})
        await raw.writer.drain()


async def test_once_it_reads_it_gets_every_answer(supervisor: Supervisor, relay: RelayCore) -> None:
    for _ in range(20):
        await relay.publish(A, {"content": "x" * 100_000}, sender="relay.agent.s")
    async with Raw(supervisor.socket) as late, Raw(supervisor.socket) as other:
        asked = {late.ask("inbox.peek", subject=A) for _ in range(50)}
        late.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(20):
            await other.call("inbox.peek", subject=A, limit=1)
        late.writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = [await late.frame() or {} for _ in asked]
        assert {answer["id"] for answer in answers} == asked
        assert all(len(answer["result"]["messages"]) == 20 for answer in answers)


async def test_a_subscriber_that_never_reads_fails_its_deliveries_and_its_breaker_opens(tmp_path: Path) -> None:
    config = {**UNLIMITED, "dispatch": {"handlerTimeoutMs": 300}}
    async with a_daemon(tmp_path, config) as daemon, Raw(daemon.socket) as raw, Raw(daemon.socket) as good:
        await raw.call("endpoints.register", subject=A)
        await raw.call("endpoints.register", subject="relay.agent.good")
        await good.call("subscribe", pattern="relay.agent.good")
        connected = deaf(daemon.socket, request("subscribe", {"pattern": A}, 1))
        try:
            for _ in range(12):
                await raw.call("publish", **message(A, 900_000))

            async def opened() -> bool:
                return any(breaker["state"] == "OPEN" for breaker in (await raw.call("breakers.list"))["breakers"])

            await until(opened)
            await raw.call("publish", **message("relay.agent.good"))
            await good.call("ack", deliveryId=(await good.note())["deliveryId"])
            assert await codes(raw) == {"timeout": 5}
            mailboxes = (await raw.call("mailboxes.list"))["mailboxes"]
            [depth] = [mailbox["depth"] for mailbox in mailboxes if mailbox["subject"] == A]
            assert depth == 7  # they wait until it is tried again
        finally:
            connected.close()


async def test_a_subscriber_that_never_reads_costs_no_memory(tmp_path: Path) -> None:
    config: dict[str, Any] = {**UNLIMITED, "dispatch": {"handlerTimeoutMs": 50}}
    config["reliability"] = {**UNLIMITED["reliability"], "circuitBreaker": {"enabled": False}}
    async with a_daemon(tmp_path, config) as daemon, Raw(daemon.socket) as raw:
        await raw.call("endpoints.register", subject=A)
        connected = deaf(daemon.socket, request("subscribe", {"pattern": A}, 1))
        before = 0
        try:
            for number in range(50):
                await raw.call("publish", **message(A, 900_000))

                async def parked(count: int = number + 1) -> bool:
                    return await codes(raw) == {"timeout": count}

                await until(parked)
                if number == 5:  # it has what it needs for messages of this size
                    before = memory(daemon)
            assert memory(daemon) - before < GROWTH
        finally:
            connected.close()


def message(subject: str, size: int = 10) -> dict[str, Any]:
    return {"subject": subject, "from": "relay.agent.s", "payload": {"content": "x" * size}}


async def codes(raw: Raw) -> dict[str, int]:
    """Return the dead letters' codes, counted."""
    return {group["code"]: group["count"] for group in (await raw.call("deadletters.groups"))["groups"]}


async def test_a_line_that_is_never_completed_ends_the_connection(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_deadline, "LINE_SECS", 0.2)
    async with Raw(supervisor.socket) as slow, Raw(supervisor.socket) as other:
        for _ in range(5):  # more bytes win no time; none is sent once the connection may be over
            slow.send(b"[")
            await other.call("server.ping")
        [said] = await slow.over()
        assert kind(said) == ("ProtocolError", "frame_too_slow")
        await other.call("server.ping")


async def test_every_line_has_its_own_deadline(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Raw(supervisor.socket) as raw:
        await raw.call("server.ping")
        [connection] = supervisor.context.connections
        line = request("server.ping", {}, 7)
        monkeypatch.setattr(line_deadline, "LINE_SECS", 0.2)
        raw.send(line[:10])
        await until(lambda: connection._frames.begun)
        raw.send(line[10:])
        assert (await raw.frame() or {})["id"] == 7
        monkeypatch.setattr(line_deadline, "LINE_SECS", 3600.0)
        raw.send(line[:10])
        await until(lambda: connection._frames.begun)
        await asyncio.sleep(0.2)  # set later than the first line's deadline on the same loop: rings after it
        raw.send(line[10:])
        assert (await raw.frame() or {})["id"] == 7


@pytest.mark.parametrize(
    ("begin", "given", "end", "named"),
    [
        ("replies.open", {}, "endpoints.unregister", "subject"),
        ("state.watch", {}, "state.unwatch", "watchId"),
        ("subscribe", {"pattern": A}, "unsubscribe", "subscriptionId"),
        ("signal.subscribe", {"pattern": A}, "signal.unsubscribe", "subscriptionId"),
    ],
    ids=["private mailboxes", "state streams", "subscriptions", "signals"],
)
async def test_what_a_connection_began_and_ended_is_not_remembered(
    supervisor: Supervisor, begin: str, given: dict[str, str], end: str, named: str
) -> None:
    async with Raw(supervisor.socket) as raw:
        await raw.call("server.ping")
        [connection] = supervisor.context.connections
        kept = set()
        for _ in range(3):
            begun = await raw.call(begin, **given)
            await raw.call(end, **{named: begun[named]})
            kept.add(len(connection._cleanups))
        assert len(kept) == 1


@pytest.mark.parametrize("how", ["closes", "is killed"])
@pytest.mark.parametrize(
    "asks",
    [("subscribe", {"pattern": A}), ("inbox.claim", {"subject": A})],
    ids=["with a pushed delivery", "with a claim"],
)
async def test_who_vanishes_with_a_message_in_hand_has_it_parked_once(
    supervisor: Supervisor, relay: RelayCore, asks: tuple[str, dict[str, Any]], how: str
) -> None:
    sent = await relay.publish(A, {"content": "hi"}, sender="relay.agent.s")
    await vanish(supervisor, asks, sent.message_id, how)
    [letter] = await letters(relay, 1)
    assert (letter.message_id, letter.code) == (sent.message_id, "disconnected")
    await until(lambda: not supervisor.context.connections)
    later = await relay.publish(A, {"content": "again"}, sender="relay.agent.s")
    await relay.idle()
    assert [envelope.id for envelope in await relay.inbox(A)] == [later.message_id]
    assert len(await relay.dead_letters()) == 1
    assert supervisor.context.consumers.pending() == []


async def test_a_lease_outlives_the_process_that_made_it(supervisor: Supervisor, relay: RelayCore) -> None:
    sent = await relay.publish(A, {"content": "hi"}, sender="relay.agent.s")
    await vanish(supervisor, ("inbox.claim", {"subject": A, "leaseMs": 3_600_000}), sent.message_id, "is killed")
    async with Raw(supervisor.socket) as other:
        await other.call("inbox.complete", subject=A, id=sent.message_id)
    assert [span.status for span in await relay.trace(sent.message_id)] == ["done"]
    assert await relay.dead_letters() == []


async def vanish(supervisor: Supervisor, asks: tuple[str, dict[str, Any]], message_id: str, how: str) -> None:
    """Have a client take a message, and make it go away."""
    method, params = asks
    if how == "closes":
        async with Raw(supervisor.socket) as raw:
            raw.ask(method, **params)
            while message_id not in str(await raw.frame()):
                pass
    else:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            CONSUMER,
            str(supervisor.socket),
            json.dumps([asks]),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        while message_id.encode() not in await process.stdout.readline():
            pass
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await until(lambda: not supervisor.context.connections)


async def test_300_connections_opened_and_dropped_at_once_leave_nothing(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        before = open_files(daemon)
        for _ in range(3):
            opened = [socket.socket(socket.AF_UNIX) for _ in range(300)]
            for number, sock in enumerate(opened):
                sock.connect(str(daemon.socket))
                sock.send([request("server.ping", {}, 1), b'{"half', request("state.watch", {}, 1)][number % 3])
            for sock in opened:
                sock.close()

        async def gone() -> bool:
            return (await client.status()).connections == 1 and open_files(daemon) <= before

        await until(gone)


async def test_one_connection_too_many_is_told_so_and_the_others_work(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    async with a_supervisor(data_dir) as supervisor, AsyncExitStack() as stack:
        allowed = [await stack.enter_async_context(Raw(supervisor.socket)) for _ in range(5)]
        for client in allowed:
            await client.call("server.ping")
        for _ in range(3):
            async with Raw(supervisor.socket) as extra:
                extra.ask("server.ping")
                [said] = await extra.over()
                assert kind(said) == ("RelayError", "refused")
                assert "5 connections" in said["error"]["message"]
        for client in allowed:
            await client.call("server.ping")
        await allowed[0].close()
        await until(lambda: len(supervisor.context.connections) == 4)
        async with Raw(supervisor.socket) as next_one:
            await next_one.call("server.ping")


async def test_a_client_that_closes_its_end_first_still_gets_every_answer(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as raw:
        asked = [raw.ask("inbox.peek", subject=A) for _ in range(200)]
        asked += [raw.ask("publish", subject=A, **{"from": "relay.agent.s"}, payload={}) for _ in range(200)]
        raw.send(b'{"jsonrpc": "2.0", "id": 9999, "meth')  # a line cut off is no request
        raw.writer.write_eof()
        answers = await raw.over()
        assert sorted(answer["id"] for answer in answers) == asked
        assert all("result" in answer for answer in answers)


async def test_what_was_asked_before_a_line_that_is_too_long_is_answered(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as raw:
        asked = [raw.ask("inbox.peek", subject=A) for _ in range(20)]
        raw.send(b"x" * (MAX_FRAME + 1))
        answers = await raw.over()
        assert sorted(answer["id"] for answer in answers if "result" in answer) == asked
        assert [kind(answer) for answer in answers if "error" in answer] == [("ProtocolError", "frame_too_large")]


async def test_an_error_that_would_not_fit_into_a_frame_is_cut(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as raw:
        sender = "relay.system." + "x" * (3 * MB)
        asked = raw.ask("publish", subject=A, **{"from": sender}, payload={})
        line = await raw.reader.readline()
        assert len(line) < MAX_FRAME
        assert f'"id":{asked},'.encode() in line
        await raw.call("server.ping")


async def test_more_requests_in_one_write_than_are_begun_at_once_all_get_their_answers(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as raw:
        params = {"subject": A, "from": "relay.agent.s", "payload": {"content": "hi"}}
        count = 4 * connection_module.IN_FLIGHT
        raw.send(b"".join(request("publish", params, id) for id in range(count)))
        answers = [await raw.frame() or {} for _ in range(count)]
        assert [answer["id"] for answer in answers] == list(range(count))
        assert len({answer["result"]["messageId"] for answer in answers}) == count
        await raw.call("server.ping")


async def test_a_flood_does_not_starve_another_connection(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as flood, Raw(supervisor.socket) as other:
        params = {"subject": A, "from": "relay.agent.s", "payload": {}}
        flood.send(b"".join(request("publish", params, id) for id in range(1500)))
        last = (await flood.frame() or {})["id"]  # it is being answered
        [mailbox] = (await other.call("mailboxes.list"))["mailboxes"]
        assert mailbox["depth"] < 750  # far from all of it was done before this was answered
        while last < 1499:
            last = (await flood.frame() or {})["id"]


async def test_a_notification_never_gets_an_answer(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as raw:
        asks: list[tuple[str, dict[str, Any]]] = [
            ("server.ping", {}),
            ("no.such.method", {}),
            ("publish", {"subject": 7}),
            ("publish", {"subject": A, "from": "relay.system.x", "payload": {}}),
            ("inbox.peek", {"subject": A}),
            ("inbox.claim", {"subject": "relay.agent.unknown"}),
            ("inbox.complete", {"subject": A, "id": "nothing"}),
            ("jobs.run", {"name": "nothing"}),
        ]
        for method, params in asks:
            raw.send(request(method, params))
        raw.send(b'{"jsonrpc": "2.0", "id": 5, "result": {}}\n\n\r\n')  # nor does an answer, or an empty line
        for _ in range(20):
            await raw.call("server.ping")
        raw.writer.write_eof()
        assert await raw.over() == []


SIGNAL = {"type": "typing", "state": "started", "endpointSubject": A, "timestamp": "2026-11-16T19:00:00Z"}


@pytest.mark.parametrize(
    ("subscribe", "kind_of_note", "send", "params"),
    [
        ("signal.subscribe", "signal", "signal.send", {"subject": A, "signal": {**SIGNAL, "data": "x" * MB}}),
        ("subscribe", "message", "publish", message(A, 900_000)),
    ],
    ids=["signal", "message"],
)
async def test_one_long_note_to_many_subscriptions_of_a_client_is_sent_at_its_pace(
    supervisor: Supervisor, subscribe: str, kind_of_note: str, send: str, params: dict[str, Any]
) -> None:
    count = 100
    async with Raw(supervisor.socket) as greedy:
        greedy.send(b"".join(request(subscribe, {"pattern": A}, id) for id in range(count)))
        assert all(["result" in (await greedy.frame() or {}) for _ in range(count)])
        (connection,) = supervisor.context.connections
        greedy.reader._transport.pause_reading()  # type: ignore[attr-defined]  # it reads nothing from now on
        greedy.ask(send, **params)
        async with Raw(supervisor.socket) as other:
            await until(lambda: not connection.writable)
            for _ in range(3):
                await other.call("server.ping")
            assert connection.transport.get_write_buffer_size() < 4 * MB  # of 100 that the notes have
        greedy.reader._transport.resume_reading()  # type: ignore[attr-defined]
        came = [await greedy.frame() or {} for _ in range(2)]  # one of them may be the answer
        assert kind_of_note in [frame.get("method") for frame in came]


async def test_pipelined_publishes_to_a_pattern_are_made_one_by_one_and_in_order(
    supervisor: Supervisor, relay: RelayCore
) -> None:
    for number in range(20):
        await relay.register_endpoint(f"relay.crowd.{number}")
    async with Raw(supervisor.socket) as first, Raw(supervisor.socket) as second, Raw(supervisor.socket) as other:
        await other.call("server.ping")
        for id in range(100):
            first.send(request("publish", message(">"), id))
            second.send(request("publish.batch", {"messages": [message(">")]}, id))
        first.send(request("publish", {**message(A), "payload": {"content": "last"}}, 100))
        await first.frame()
        await other.call("publish", **message("relay.crowd.0"))
        [depth] = [mailbox.depth for mailbox in relay.mailboxes() if mailbox.subject == "relay.crowd.0"]
        assert depth < 50  # of 201: it did not wait for what the others have asked for
        ids = [(await first.frame() or {})["id"] for _ in range(100)]
        assert ids == list(range(1, 101))
        for _ in range(100):
            assert "result" in (await second.frame() or {})
        mine = [message.payload["content"] for message in await relay.inbox(A, limit=1000)]
        assert len(mine) == 201
        assert mine.index("last") >= 100  # after its own hundred, whatever the other connection has added

"""What others may put into the stream or say to us: it must not stop anybody else's messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers.nats import NatsServer, StuckProxy, config, export_only, publish_raw, settled, side
from tests.kit.waiting import until


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(b"N", id="one-byte"),
        pytest.param(b"NATS/1.0", id="without-a-line-end"),
        pytest.param(b"NATS/1.0\r\nrelay-hops 1\r\n\r\n", id="no-colon"),
        pytest.param(b"NATS/1.0\r\nrelay-hops: \xff\r\n\r\n", id="value-that-is-no-text"),
    ],
)
async def test_headers_that_cannot_be_read_are_refused_and_nothing_else(
    server: NatsServer, tmp_path: Path, headers: bytes
) -> None:
    async with side(tmp_path / "2", config(server)) as right, server.client() as client:
        await right.agent("relay.agent.x")

        await publish_raw(server, "relay.agent.x", headers, b"1")
        await client.jetstream().publish("relay.agent.x", b'"good"')

        await until(lambda: bool(right.got))
        await settled(client, right)
        assert right.got == [("relay.agent.x", "good")]
        assert right.state == "connected"
        assert "1 incoming refused" in (right.relay.adapters()[0].detail or "")
        assert len(list((tmp_path / "2/adapters/nats/refused").iterdir())) == 1


async def test_an_empty_header_block_is_none(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "2", config(server)) as right:
        await right.agent("relay.agent.x")

        await publish_raw(server, "relay.agent.x", b"NATS/1.0\r\n\r\n", b"1")

        await until(lambda: right.got == [("relay.agent.x", 1)])


async def test_a_link_whose_reading_has_ended_has_ended(server: NatsServer, tmp_path: Path) -> None:
    async with StuckProxy(server.port).running() as proxy, side(tmp_path / "1", export_only(proxy)) as left:
        assert left.state == "connected"

        proxy.inject(b"INFO {\r\n")  # the library's reading ends with an error, its connection does not

        await until(lambda: left.state == "disconnected")
        await until(lambda: left.state == "connected")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("$JS.ACK.a.b.c", id="too-short"),
        pytest.param("$JS.ACK.RELAY.x.1.one.1.1700000000000000000.0", id="no-number"),
        pytest.param("$JS.ACK./tmp/EVIL.x.1.1.1.1700000000000000000.0", id="another-stream"),
        pytest.param("$JS.ACK.RELAY.x.1.1.1.99999999999999999999999999999999.0", id="no-date"),
    ],
)
async def test_what_a_stranger_says_to_our_inbox_counts_for_nothing(
    server: NatsServer, tmp_path: Path, reply: str
) -> None:
    # Newer servers do not carry such a message; older ones do.
    async with (
        StuckProxy(server.port, b"no such word").running() as proxy,
        side(tmp_path / "2", config(proxy)) as right,
        server.client() as client,
    ):
        await right.agent("relay.agent.x")
        connection = right.adapter._connection
        assert connection is not None
        await until(lambda: len(connection.client._subs) == 2)  # for answers, and for messages
        number, inbox = [(number, sub.subject) for number, sub in connection.client._subs.items()][-1]

        proxy.inject(f"MSG {inbox} {number} {reply} 7\r\nno json\r\n".encode())
        await client.jetstream().publish("relay.agent.x", b'"good"')

        await until(lambda: right.got == [("relay.agent.x", "good")])
        await settled(client, right)
        assert right.adapter._connection is connection
        assert not (tmp_path / "2/adapters/nats/refused").exists()

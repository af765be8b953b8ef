"""What goes wrong with the server, and what the breaker, the dead letter or the retry must show.

Servers are real: refusing, full, paused, killed, without the stream, without JetStream.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StreamConfig

from relay_core import RelayError
from relay_core.testing import FakeClock
from relay_supervisor.adapters.nats.adapter import NatsAdapter
from relay_supervisor.adapters.nats.config import NatsConfig
from tests.kit.servers.nats import (
    NatsServer,
    PausingProxy,
    Side,
    StuckProxy,
    config,
    config_for,
    export_only,
    running_server,
    side,
    talking_server,
)
from tests.kit.waiting import until

TOKEN = "hunter22-token"


async def add_stream(server: NatsServer, **settings: Any) -> None:
    async with server.client() as client:
        await client.jetstream().add_stream(StreamConfig(name="RELAY", subjects=["relay.>"], **settings))


async def stored(server: NatsServer) -> int:
    async with server.client() as client:
        return (await client.jetstream().stream_info("RELAY")).state.messages


def mailed(left: Side) -> int:
    return left.relay.adapters()[0].depth


async def codes(left: Side) -> list[str]:
    return [letter.code for letter in await left.relay.dead_letters()]


# -- what keeps it from starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "keys", "remedy"),
    [
        pytest.param("", {"createStream": False}, "there is no stream RELAY: create it", id="no-stream"),
        pytest.param(f'authorization {{ token: "{TOKEN}" }}', {"token": "wrong-secret"}, "check token", id="token"),
        pytest.param(f'authorization {{ token: "{TOKEN}" }}', {}, "check token", id="no-token"),
        pytest.param("", {"tls": {}}, "does not offer TLS", id="no-tls"),
        pytest.param(
            'authorization { users: [{user: a, password: b, permissions: {publish: ["relay.>"]}}] }',
            {"user": "a", "password": "b", "connectTimeoutSecs": 0.3},
            "give this user the permission",
            id="no-permission-for-jetstream",
        ),
        pytest.param("", {"tls": {"caFile": "/no/such/file"}}, "certificates cannot be read", id="no-ca"),
    ],
)
async def test_a_server_that_will_not_have_us_is_a_failed_start_with_a_remedy(
    tmp_path: Path, settings: str, keys: dict[str, Any], remedy: str
) -> None:
    async with running_server(tmp_path / "server", settings) as server:
        with pytest.raises(RelayError) as caught:
            async with side(tmp_path / "1", config(server, **keys)):
                pass

    assert caught.value.code == "adapter_failed"
    assert remedy in caught.value.message
    assert "wrong-secret" not in caught.value.message


async def test_a_stream_that_does_not_take_what_we_export_is_a_failed_start(server: NatsServer, tmp_path: Path) -> None:
    async with server.client() as client:
        await client.jetstream().add_stream(StreamConfig(name="RELAY", subjects=["relay.human.>"]))

    with pytest.raises(RelayError, match=r"accepts relay\.human\.>, but not relay\.agent\.>"):
        async with side(tmp_path / "1", config(server)):
            pass


async def test_with_the_right_token_it_connects_and_shows_it_nowhere(tmp_path: Path) -> None:
    settings = f'authorization {{ token: "{TOKEN}" }}'
    async with (
        running_server(tmp_path / "server", settings) as server,
        side(tmp_path / "1", config(server, token=TOKEN)) as left,
    ):
        assert left.state == "connected"
        assert TOKEN not in repr(left.relay.adapters())


async def test_without_jetstream_mail_waits_and_the_status_says_why(tmp_path: Path) -> None:
    async with (
        running_server(tmp_path / "server", jetstream=False) as server,
        side(tmp_path / "1", config(server)) as left,
    ):
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")

        assert left.state == "disconnected"
        assert "nats-server -js" in (left.relay.adapters()[0].detail or "")
        assert mailed(left) == 1


# -- servers that are down, slow or gone ----------------------------------------------------------------------------


async def test_with_the_server_down_at_the_start_mail_waits_until_it_is_up(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = NatsServer(tmp_path / "server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server.port = free.getsockname()[1]
    async with side(tmp_path / "1", config(server)) as left:
        assert left.state == "disconnected"
        result = await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        assert result.delivered_to == 1
        assert mailed(left) == 1

        await server.start()
        try:
            await until(lambda: left.relay.adapters()[0].delivered == 1)
            assert await stored(server) == 1
            assert await codes(left) == []
        finally:
            await server.kill()


async def test_the_second_server_is_used_when_the_first_is_down(server: NatsServer, tmp_path: Path) -> None:
    both = config(server, servers=["nats://127.0.0.1:1", server.url])
    async with side(tmp_path / "1", both) as left:
        await until(lambda: left.state == "connected")


async def test_the_second_server_is_used_when_the_first_refuses(server: NatsServer, tmp_path: Path) -> None:
    async with running_server(tmp_path / "other", f'authorization {{ token: "{TOKEN}" }}') as other:
        async with side(tmp_path / "1", config(server, servers=[other.url, server.url])) as left:
            assert left.state == "connected"

        with pytest.raises(RelayError, match="check token") as caught:
            async with side(
                tmp_path / "2", config(server, servers=[other.url, other.url.replace("127.0.0.1", "localhost")])
            ):
                pass
        assert caught.value.message.count("check token") == 2


async def test_a_paused_server_burns_nothing_and_gets_each_message_once(server: NatsServer, tmp_path: Path) -> None:
    quick = config(server, publishTimeoutSecs=0.2, connectTimeoutSecs=0.3)
    async with side(tmp_path / "1", quick) as left:
        await left.relay.publish("relay.agent.x", 0, sender="relay.agent.a")
        server.pause()
        publish = [left.relay.publish("relay.agent.x", n, sender="relay.agent.a") for n in range(1, 4)]
        work = asyncio.gather(*publish)
        await until(lambda: left.state == "disconnected")
        server.resume()
        await work

        await until(lambda: left.relay.adapters()[0].delivered == 4)
        assert await stored(server) == 4
        assert await codes(left) == []
        assert left.relay.breakers() == [] or all(breaker.state == "CLOSED" for breaker in left.relay.breakers())


async def test_an_acknowledgement_that_was_cut_off_does_not_double_the_message(
    server: NatsServer, tmp_path: Path
) -> None:
    await add_stream(server)
    async with StuckProxy(server.port, carry_last=True).running() as proxy:
        quick = export_only(proxy, servers=[proxy.url, server.url], publishTimeoutSecs=0.3, connectTimeoutSecs=0.3)
        async with side(tmp_path / "1", quick) as left:
            await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")  # the stream has it; we do not know

            await until(lambda: left.relay.adapters()[0].delivered == 1)
            assert proxy.stuck.is_set()
            assert await stored(server) == 1
            assert await codes(left) == []


async def test_beyond_the_duplicate_window_an_unsure_message_fails(server: NatsServer, tmp_path: Path) -> None:
    await add_stream(server, duplicate_window=60)
    clock = FakeClock()
    async with StuckProxy(server.port).running() as proxy:
        quick = export_only(proxy, servers=[proxy.url, server.url], publishTimeoutSecs=0.3, connectTimeoutSecs=0.3)
        async with side(tmp_path / "1", quick, clock=clock) as left:
            await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
            await until(lambda: left.state == "disconnected")

            clock.advance(120)
            for _ in range(1000):
                if await codes(left):
                    break
                clock.advance(1)
                await asyncio.sleep(0.01)

            (letter,) = await left.relay.dead_letters()
            assert letter.code == "adapter_failed"
            assert "duplicate window of 60 s" in (letter.reason or "")


async def test_a_server_killed_under_load_loses_and_doubles_nothing(server: NatsServer, tmp_path: Path) -> None:
    total = 500
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, ackWaitSecs=2)) as right,
    ):
        names = [f"relay.agent.x{n}" for n in range(5)]
        for name in names:
            await right.agent(name)

        async def send(name: str) -> None:
            for n in range(total // len(names)):
                await left.relay.publish(name, n, sender="relay.agent.a")

        async def kill() -> None:
            for share in (total // 10, total // 2):
                await until(lambda share=share: left.relay.adapters()[0].delivered >= share)  # type: ignore[misc]
                await server.kill()
                await until(lambda: left.state == right.state == "disconnected")
                await server.start()

        await asyncio.gather(kill(), *[send(name) for name in names])

        await until(lambda: left.relay.adapters()[0].delivered == total)
        await until(lambda: len(right.got) >= total)
        async with server.client() as client:
            durable = right.durable
            for _ in range(500):
                info = await client.jetstream().consumer_info("RELAY", durable)
                if info.num_ack_pending == 0 and info.num_pending == 0:
                    break
                await asyncio.sleep(0.02)
            everything = sorted((name, n) for name in names for n in range(total // len(names)))
            js = client.jetstream()
            kept = [await js.get_msg("RELAY", seq + 1) for seq in range(await stored(server))]
        assert sorted(right.got) == everything
        assert [
            (msg.subject, int(msg.data or b"")) for msg in sorted(kept, key=lambda msg: str(msg.subject))
        ] == everything
        assert await codes(left) == await codes(right) == []


async def test_a_stream_that_is_removed_stops_the_export_without_a_loss(server: NatsServer, tmp_path: Path) -> None:
    await add_stream(server)
    async with side(tmp_path / "1", export_only(server, createStream=False)) as left:
        async with server.client() as client:
            await client.jetstream().delete_stream("RELAY")
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await until(lambda: left.state == "error")
        assert "there is no stream RELAY" in (left.relay.adapters()[0].detail or "")
        assert await codes(left) == []

        await add_stream(server)
        await until(lambda: left.relay.adapters()[0].delivered == 1)


async def test_a_consumer_that_is_removed_is_made_again(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        await right.agent("relay.agent.x")
        async with server.client() as client:
            await client.jetstream().delete_consumer("RELAY", right.durable)
        await until(lambda: right.state == "disconnected")
        await until(lambda: right.state == "connected")

        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await until(lambda: right.got == [("relay.agent.x", 1)])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="no-nats-server"),
        pytest.param(b"INFO {\r\n", id="broken-info"),
        pytest.param(b"", id="cut-off"),
    ],
)
async def test_what_does_not_speak_the_protocol_is_tried_again(tmp_path: Path, answer: bytes) -> None:
    async with (
        talking_server(answer) as (url, _),
        side(tmp_path / "1", config_for(url, connectTimeoutSecs=1)) as left,
    ):
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")

        assert left.state == "disconnected"
        assert mailed(left) == 1


async def test_replaced_under_load_nothing_is_lost_or_doubled(server: NatsServer, tmp_path: Path) -> None:
    names = [f"relay.agent.x{n}" for n in range(4)]
    patient = config(server, lanes=4, ackWaitSecs=600)  # who leaves gives back what it has in hand
    async with (
        side(tmp_path / "1", patient) as left,
        side(tmp_path / "2", patient, endpoints=names) as right,
    ):
        for name in names:
            await right.agent(name)

        async def send(name: str) -> None:
            for n in range(50):
                await left.relay.publish(name, n, sender="relay.agent.a")

        async def replace() -> None:
            for share in (20, 80, 140):
                await until(lambda share=share: left.relay.adapters()[0].delivered >= share)  # type: ignore[misc]
                for each in (left, right):
                    await each.relay.replace_adapter(NatsAdapter("nats", patient))

        await asyncio.gather(replace(), *[send(name) for name in names])

        await until(lambda: len(right.got) >= 200)
        assert sorted(right.got) == sorted((name, n) for name in names for n in range(50))
        assert await stored(server) == 200
        assert await codes(left) == await codes(right) == []


async def test_what_is_sent_to_an_importer_that_is_leaving_is_given_back(server: NatsServer, tmp_path: Path) -> None:
    async with server.client() as client:

        async def send_to_it() -> None:
            await client.jetstream().publish("relay.agent.x", b'"late"')
            await until(lambda: b'"late"' in proxy.brought)

        # The server is told late that the importer wants no more.
        async with PausingProxy(server.port, b"UNSUB", send_to_it).running() as proxy:
            async with side(tmp_path / "1", config(proxy, ackWaitSecs=600), endpoints=["relay.agent.x"]) as left:
                await left.agent("relay.agent.x")
                await client.jetstream().publish("relay.agent.x", b'"early"')
                await until(lambda: left.got == [("relay.agent.x", "early")])
            assert b'"late"' in proxy.brought

        async with side(tmp_path / "1", config(server, ackWaitSecs=600)) as left:
            await left.agent("relay.agent.x")
            await until(lambda: left.got == [("relay.agent.x", "late")])


# -- messages that the server does not take -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "stream", "payload", "why"),
    [
        pytest.param("", {}, "x" * 250_000, "raise max_payload there", id="max-payload"),
        pytest.param("", {"max_msg_size": 500}, "x" * 1000, "raise its max_msg_size", id="max-msg-size"),
        pytest.param(
            "no_auth_user: a\nauthorization { users: [{user: a, password: b, permissions: {publish: "
            '{deny: ["relay.agent.x"]}}}] }',
            {},
            "small",
            "does not allow this user to publish to relay.agent.x",
            id="permission",
        ),
    ],
)
async def test_what_the_server_never_takes_is_a_dead_letter_with_a_remedy(
    tmp_path: Path, settings: str, stream: dict[str, Any], payload: str, why: str
) -> None:
    async with running_server(tmp_path / "server", settings) as server:
        await add_stream(server, **stream)
        async with side(tmp_path / "1", export_only(server)) as left:
            await left.relay.publish("relay.agent.x", payload, sender="relay.agent.a")
            await left.relay.publish("relay.agent.y", "fine", sender="relay.agent.a")
            await left.relay.idle()

            (letter,) = await left.relay.dead_letters()
            assert letter.code == "adapter_failed"
            assert why in (letter.reason or "")
            assert left.state == "connected"
            assert left.relay.adapters()[0].delivered == 1


async def test_an_answer_that_is_not_jetstreams_is_a_dead_letter(server: NatsServer, tmp_path: Path) -> None:
    await add_stream(server)
    async with side(tmp_path / "1", export_only(server)) as left, server.client() as client:

        async def answer(msg: Msg) -> None:
            await msg.respond(b"I am a service")

        await client.subscribe("relay.agent.x", cb=answer)
        await client.flush()
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await left.relay.idle()

        # Whose answer comes first is the server's business.
        for letter in await left.relay.dead_letters():
            assert "another service than JetStream" in (letter.reason or "")
        assert left.state == "connected"


async def test_an_import_only_bridge_takes_nothing_out(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server, export=[]), endpoints=["relay.agent.x"]) as left:
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await left.relay.publish("relay.nats.nats", 1, sender="relay.agent.a")
        await left.relay.idle()

        assert await stored(server) == 0
        assert await codes(left) == ["adapter_failed"]


async def test_a_full_stream_is_asked_again_and_the_status_says_so(server: NatsServer, tmp_path: Path) -> None:
    await add_stream(server, max_msgs=1, discard=DiscardPolicy.NEW)
    clock = FakeClock()
    async with side(tmp_path / "1", export_only(server), clock=clock) as left:
        for n in range(2):
            await left.relay.publish("relay.agent.x", n, sender="relay.agent.a")
        assert "is full" in (left.relay.adapters()[0].detail or "")
        assert await codes(left) == []

        async with server.client() as client:
            await client.jetstream().purge_stream("RELAY")
        clock.advance(10)

        await until(lambda: left.relay.adapters()[0].delivered == 2)
        assert "full" not in (left.relay.adapters()[0].detail or "")


async def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("client", "connection", "imports", "login", "stream"):
        monkeypatch.delitem(sys.modules, f"relay_supervisor.adapters.nats.{name}", raising=False)
        monkeypatch.delattr(f"relay_supervisor.adapters.nats.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)

    adapter = NatsAdapter("nats", NatsConfig.model_validate({"servers": ["nats://h:1"], "export": ["relay.>"]}))
    with pytest.raises(Exception, match=r"relay-bus\[nats\]"):
        await adapter.start(None)  # type: ignore[arg-type]  # it does not come so far
    await adapter.stop()

"""This relay's consumer: where it begins, where it goes on, and which one is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from relay_core import RelayError
from relay_core.testing import FakeClock
from relay_supervisor.adapters.nats.files import Position, read_position, write_position
from tests.kit.servers.nats import NatsServer, Side, config, settled, side
from tests.kit.waiting import until


async def add_consumer(client: Client, name: str, **settings: Any) -> None:
    await client.jetstream().add_stream(name="RELAY", subjects=["relay.>"])
    wanted = {"durable_name": name, "ack_policy": "explicit", "filter_subject": "relay.agent.>", **settings}
    answer = await client.request(
        f"$JS.API.CONSUMER.DURABLE.CREATE.RELAY.{name}",
        orjson.dumps({"stream_name": "RELAY", "config": {"deliver_policy": "all", **wanted}}),
    )
    assert "error" not in orjson.loads(answer.data)


def payloads(of: Side) -> list[Any]:
    return [payload for _, payload in of.got]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        pytest.param({"ack_policy": "none"}, "acknowledgement of each message", id="no-acks"),
        pytest.param({"ack_policy": "all"}, "acknowledgement of each message", id="acks-in-heaps"),
        pytest.param({"headers_only": True}, "headers without bodies", id="headers-only"),
        pytest.param({"deliver_subject": "elsewhere"}, "is a push consumer", id="push"),
    ],
)
async def test_a_consumer_that_would_lose_messages_is_refused_with_a_remedy(
    server: NatsServer, tmp_path: Path, settings: dict[str, Any], fault: str
) -> None:
    async with server.client() as client:
        await add_consumer(client, "theirs", **settings)

    with pytest.raises(RelayError, match=fault) as caught:
        async with side(tmp_path / "1", config(server, durable="theirs")):
            pass
    assert "nats consumer rm RELAY theirs" in caught.value.message


@pytest.mark.parametrize("limits", [{"max_batch": 10}, {"max_expires": 5_000_000_000}], ids=["batch", "expires"])
async def test_a_consumers_limits_on_requests_are_lifted(
    server: NatsServer, tmp_path: Path, limits: dict[str, int]
) -> None:
    async with server.client() as client:
        await add_consumer(client, "tight", **limits)
        asked: list[Msg] = []

        async def hear(msg: Msg) -> None:
            asked.append(msg)

        await client.subscribe("$JS.API.CONSUMER.MSG.NEXT.>", cb=hear)
        await client.flush()
        async with side(tmp_path / "1", config(server, durable="tight")) as left:
            await left.agent("relay.agent.x")
            await client.jetstream().publish("relay.agent.x", b"1")
            await until(lambda: payloads(left) == [1])
            await client.flush()
            assert len(asked) == 1


async def test_a_consumer_that_is_removed_while_the_relay_is_away_goes_on_where_it_was(
    server: NatsServer, tmp_path: Path
) -> None:
    async with side(tmp_path / "other", config(server)) as other, server.client() as client:

        async def say(what: str) -> None:
            await other.relay.publish("relay.agent.x", what, sender="relay.agent.a")

        await say("before it joined")
        async with side(tmp_path / "1", config(server)) as left:
            durable = left.durable
        await say("while it was away")
        await client.jetstream().delete_consumer("RELAY", durable)
        await say("after its consumer was removed")

        async with side(tmp_path / "1", config(server), endpoints=["relay.agent.x"]) as left:
            await left.agent("relay.agent.x")
            await settled(client, left)
            await until(lambda: len(left.got) >= 2)
            assert payloads(left) == ["while it was away", "after its consumer was removed"]


async def test_where_it_begins_is_written_down_before_it_has_started(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left:
        position = read_position(tmp_path / "1/adapters/nats")
        assert position is not None
        assert (position.durable, position.settled) == (left.durable, 0)


async def test_how_far_it_has_come_is_written_down_and_what_comes_again_is_known(
    server: NatsServer, tmp_path: Path
) -> None:
    clock, place = FakeClock(), tmp_path / "1/adapters/nats"

    def written() -> int:
        position = read_position(place)
        return position.settled if position is not None else -1

    async with server.client() as client:
        async with side(tmp_path / "1", config(server), clock=clock, endpoints=["relay.agent.x"]) as left:
            await left.agent("relay.agent.x")
            await until(lambda: written() == 0)
            for n in range(3):
                await client.jetstream().publish("relay.agent.x", b"%d" % n)
            await settled(client, left)
            assert written() == 0
            for _ in range(1000):
                clock.advance(10)
                await asyncio.sleep(0.01)
                if written() == 3:
                    break
            assert written() == 3
            position = read_position(place)
        assert position is not None
        # As if it had been killed before the last ones were written down.
        write_position(place, position.model_copy(update={"settled": 1}))
        await client.jetstream().delete_consumer("RELAY", left.durable)
        async with side(tmp_path / "1", config(server)) as left:
            await left.agent("relay.agent.x")
            await client.jetstream().publish("relay.agent.x", b"3")
            await settled(client, left)
            await until(lambda: bool(left.got))
            assert payloads(left) == [3]


async def test_a_position_in_another_stream_of_that_name_counts_for_nothing(server: NatsServer, tmp_path: Path) -> None:
    async with server.client() as client:
        js = client.jetstream()
        async with side(tmp_path / "1", config(server)):
            await js.publish("relay.agent.x", b'"in the old one"')
        await js.delete_stream("RELAY")
        await js.add_stream(name="RELAY", subjects=["relay.>"])
        await js.publish("relay.agent.x", b'"before it joined"')

        async with side(tmp_path / "1", config(server)) as left:
            info = await js.consumer_info("RELAY", left.durable)
            assert info.config.deliver_policy == "new"


@pytest.mark.parametrize("text", ["", "{", '{"stream": 5}'], ids=["empty", "broken", "of-another-kind"])
def test_a_spoilt_position_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "position.json").write_text(text)

    assert read_position(tmp_path) is None


def test_a_position_is_its_owners_alone(tmp_path: Path) -> None:
    position = Position(stream="RELAY", made_at="2026-01-01T00:00:00Z", durable="d", settled=7)
    write_position(tmp_path, position)

    assert read_position(tmp_path) == position
    assert (tmp_path / "position.json").stat().st_mode & 0o077 == 0

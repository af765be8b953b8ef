"""Relays that are joined through a real server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import Envelope, RelayConfig, RelayCore
from relay_supervisor.adapters.nats.adapter import NatsAdapter
from relay_supervisor.adapters.nats.config import NatsConfig
from tests.kit.adapters import SampleAdapter, refuse
from tests.kit.servers.nats import RELAXED, NatsServer, Side, config, settled, side
from tests.kit.waiting import until


async def test_a_message_arrives_at_the_other_relay_once(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        await right.agent("relay.agent.x")

        result = await left.relay.publish("relay.agent.x", {"n": 1}, sender="relay.agent.a")

        assert result.delivered_to == 1
        async with server.client() as client:
            await settled(client, left)
            await settled(client, right)
        assert right.got == [("relay.agent.x", {"n": 1})]
        assert left.relay.adapters()[0].delivered == 1
        assert right.relay.adapters()[0].delivered == 0  # it did not go back
        span = (await left.relay.trace(result.message_id))[-1]
        assert "stream RELAY #1" in repr(span)


async def test_every_relay_gets_every_message_and_none_its_own(server: NatsServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(side(tmp_path / str(n), config(server))) for n in range(3)]
        for each in sides:
            await each.agent("relay.agent.all")

        for n, each in enumerate(sides):
            await each.relay.publish("relay.agent.all", n, sender=f"relay.agent.a{n}")

        await until(lambda: all(len(each.got) == 3 for each in sides))
        async with server.client() as client:
            for each in sides:
                await settled(client, each)
        assert [sorted(n for _, n in each.got) for each in sides] == [[0, 1, 2]] * 3


async def test_messages_of_one_subject_stay_in_order(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        names = [f"relay.agent.x{n}" for n in range(5)]
        for name in names:
            await right.agent(name)

        async def send(name: str) -> None:
            for n in range(30):
                await left.relay.publish(name, n, sender="relay.agent.a")

        await asyncio.gather(*[send(name) for name in names])

        await until(lambda: len(right.got) >= 150)
        for name in names:
            assert [n for subject, n in right.got if subject == name] == list(range(30))


async def test_a_request_is_answered_across_the_bridge(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        await left.agent("relay.agent.asker")
        await right.relay.register_endpoint("relay.agent.x")

        async def answer(envelope: Envelope) -> None:
            assert envelope.reply_to is not None
            await right.relay.publish(
                envelope.reply_to, {"answer": envelope.payload}, sender="relay.agent.x", parent_id=envelope.id
            )

        await right.relay.subscribe("relay.agent.x", answer)

        await left.relay.publish("relay.agent.x", 6, sender="relay.agent.asker", reply_to="relay.agent.asker")

        await until(lambda: bool(left.got))
        assert left.got == [("relay.agent.asker", {"answer": 6})]


async def test_agents_that_answer_each_other_for_ever_are_stopped(server: NatsServer, tmp_path: Path) -> None:
    deep = RELAXED.model_copy(update={"budget": RELAXED.budget.model_copy(update={"max_hops": 50, "call_budget": 50})})
    async with (
        side(tmp_path / "1", config(server), relay_config=deep) as left,
        side(tmp_path / "2", config(server), relay_config=deep) as right,
    ):
        calls: list[str] = []

        async def echo(relay: RelayCore, me: str, other: str) -> None:
            await relay.register_endpoint(me)

            async def handle(envelope: Envelope) -> None:
                calls.append(me)
                await relay.publish(other, envelope.payload, sender=me, parent_id=envelope.id)

            await relay.subscribe(me, handle)

        await echo(left.relay, "relay.agent.ping", "relay.agent.pong")
        await echo(right.relay, "relay.agent.pong", "relay.agent.ping")

        await left.relay.publish("relay.agent.ping", "hello", sender="relay.agent.start")

        async def codes(of: Side) -> list[str]:
            return [letter.code for letter in await of.relay.dead_letters()]

        for _ in range(1000):
            if "cycle" in [*await codes(left), *await codes(right)]:
                break
            await asyncio.sleep(0.02)
        assert calls == ["relay.agent.ping", "relay.agent.pong"]  # by the ancestors, long before the hops


async def test_hops_are_counted_across_the_bridge(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        await right.relay.register_endpoint("relay.agent.x")

        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a", budget={"maxHops": 3})

        await until(lambda: any(box.depth for box in right.relay.mailboxes()))
        (got,) = await right.relay.inbox("relay.agent.x")
        assert (got.budget.hop_count, got.budget.max_hops, got.budget.call_budget_remaining) == (2, 3, 8)
        assert got.budget.ancestor_chain == (f"relay.nats.{left.adapter._relay}", "relay.agent.x")


async def test_a_message_that_has_travelled_too_far_is_a_dead_letter_there(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left, side(tmp_path / "2", config(server)) as right:
        await right.agent("relay.agent.x")

        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a", budget={"maxHops": 1})

        async with server.client() as client:
            await settled(client, right)
        assert [letter.code for letter in await right.relay.dead_letters()] == ["max_hops"]
        assert right.got == []


async def test_teams_with_other_prefixes_do_not_hear_each_other(server: NatsServer, tmp_path: Path) -> None:
    blue = config(server, prefix="blue", stream="BLUE")
    red = config(server, prefix="red", stream="RED")
    async with (
        side(tmp_path / "1", blue) as left,
        side(tmp_path / "2", blue) as right,
        side(tmp_path / "3", red) as three,
    ):
        for each in (right, three):
            await each.agent("relay.agent.x")

        await left.relay.publish("relay.agent.x", "blue", sender="relay.agent.a")

        await until(lambda: bool(right.got))
        async with server.client() as client:
            assert (await client.jetstream().stream_info("RED")).state.messages == 0
        assert three.got == []


async def test_a_relay_that_was_away_gets_what_it_missed(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left:
        async with side(tmp_path / "2", config(server)) as right:
            await right.agent("relay.agent.x")
        for n in range(5):
            await left.relay.publish("relay.agent.x", n, sender="relay.agent.a")

        async with side(tmp_path / "2", config(server)) as right:
            await right.agent("relay.agent.x")
            async with server.client() as client:
                await settled(client, right)
            await until(lambda: len(right.got) == 5)
            assert [n for _, n in right.got] == list(range(5))


@pytest.mark.parametrize(("start", "got"), [("new", 0), ("all", 3)])
async def test_a_relay_that_joins_begins_where_it_is_told_to(
    server: NatsServer, tmp_path: Path, start: str, got: int
) -> None:
    async with side(tmp_path / "1", config(server)) as left:
        for n in range(3):
            await left.relay.publish("relay.agent.x", n, sender="relay.agent.a")

        joined = side(tmp_path / "2", config(server, importFrom=start), endpoints=["relay.agent.x"])
        async with joined as right, server.client() as client:
            info = await client.jetstream().consumer_info("RELAY", right.durable)
            await until(lambda: sum(box.depth for box in right.relay.mailboxes()) == got)
            assert info.config.deliver_policy == start


async def test_new_patterns_take_effect_when_the_bridge_is_replaced(server: NatsServer, tmp_path: Path) -> None:
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, **{"import": ["relay.agent.x"]})) as right,
    ):
        await right.agent("relay.agent.x")
        await right.agent("relay.agent.y")
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await until(lambda: bool(right.got))

        wider = config(server, **{"import": ["relay.agent.y", "relay.agent.>"]}, ackWaitSecs=5)
        await right.relay.replace_adapter(NatsAdapter("nats", wider))
        await left.relay.publish("relay.agent.y", 2, sender="relay.agent.a")

        await until(lambda: len(right.got) == 2)
        assert right.got == [("relay.agent.x", 1), ("relay.agent.y", 2)]


@pytest.mark.parametrize(
    ("subject", "data", "headers"),
    [
        pytest.param("relay.agent.x", b"hunter22 is no json", None, id="no-json"),
        pytest.param("relay.agent.a~b", b"1", None, id="bad-subject"),
        pytest.param("relay.agent.x", b"1", {"Relay-Hops": "many"}, id="bad-budget"),
        pytest.param("relay.agent.x", b'"' + b"x" * 150_000 + b'"', None, id="too-large"),
        pytest.param("relay.agent.x", b"[" * 150 + b"]" * 150, None, id="too-deep"),
    ],
)
async def test_what_cannot_be_let_in_is_kept_counted_and_never_comes_again(
    server: NatsServer, tmp_path: Path, subject: str, data: bytes, headers: dict[str, str] | None
) -> None:
    small = RELAXED.model_copy(update={"limits": RELAXED.limits.model_copy(update={"max_payload_bytes": 100_000})})
    async with (
        side(tmp_path / "2", config(server, ackWaitSecs=1), relay_config=small) as right,
        server.client() as client,
    ):
        await right.agent("relay.agent.x")
        js = client.jetstream()

        await js.publish(subject, data, headers=headers)
        await js.publish("relay.agent.x", b'"good"')

        await until(lambda: bool(right.got))
        await settled(client, right)
        assert right.got == [("relay.agent.x", "good")]
        info = await js.consumer_info("RELAY", right.durable)
        assert info.num_redelivered == 0
        state = right.relay.adapters()[0]
        assert state.state == "connected"
        assert "1 incoming refused" in (state.detail or "")
        assert "hunter22" not in (state.detail or "")
        (copy,) = (tmp_path / "2/adapters/nats/refused").iterdir()
        assert orjson.loads(copy.read_bytes())["subject"] == subject
        assert copy.stat().st_mode & 0o077 == 0


async def test_a_foreign_message_comes_from_the_bridge(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "2", config(server)) as right, server.client() as client:
        await right.relay.register_endpoint("relay.agent.x")

        await client.jetstream().publish("relay.agent.x", b"1", headers={"Relay-From": "relay.system.bus"})

        await until(lambda: any(box.depth for box in right.relay.mailboxes()))
        (got,) = await right.relay.inbox("relay.agent.x")
        assert got.sender == "relay.nats.nats"


@pytest.mark.parametrize("status", ["100", "404", "409", "503"])
async def test_a_message_cannot_pass_for_word_from_the_server(server: NatsServer, tmp_path: Path, status: str) -> None:
    async with side(tmp_path / "2", config(server)) as right, server.client() as client:
        await right.agent("relay.agent.x")

        await client.jetstream().publish("relay.agent.x", b"1", headers={"Status": status, "Description": "deleted"})

        await until(lambda: bool(right.got))
        await settled(client, right)
        assert right.got == [("relay.agent.x", 1)]


@pytest.mark.parametrize(
    "tight",
    [
        pytest.param({"rateLimit": {"maxPerWindow": 2, "windowSecs": 1}}, id="rate"),
        pytest.param({"backpressure": {"maxMailboxSize": 2}}, id="pressure"),
    ],
)
async def test_what_the_bus_cannot_take_for_now_comes_again(
    server: NatsServer, tmp_path: Path, tight: dict[str, Any]
) -> None:
    limited = RelayConfig.model_validate({"durability": "os", "reliability": tight})
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, refusedDelaySecs=0.2), relay_config=limited) as right,
        server.client() as client,
    ):
        await right.relay.register_endpoint("relay.agent.x")
        for n in range(5):
            await left.relay.publish("relay.agent.x", n, sender="relay.agent.a")

        got: list[Any] = []
        for _ in range(1000):
            for envelope in await right.relay.claim("relay.agent.x"):
                got.append(envelope.payload)
                await right.relay.complete("relay.agent.x", envelope.id)
            if len(got) == 5:
                break
            await asyncio.sleep(0.01)
        await settled(client, right)
        assert sorted(got) == list(range(5))
        assert await right.relay.dead_letters() == []


async def test_those_that_are_put_off_are_counted_in_the_status(server: NatsServer, tmp_path: Path) -> None:
    full = RelayConfig.model_validate({"durability": "os", "reliability": {"backpressure": {"maxMailboxSize": 1}}})
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, refusedDelaySecs=0.1), relay_config=full) as right,
    ):
        await right.relay.register_endpoint("relay.agent.x")
        for n in range(4):
            await left.relay.publish("relay.agent.x", n, sender="relay.agent.a")

        await until(lambda: "3 incoming put off, sent again every 0.1 s (3 backpressure)" in right.detail)
        for _ in range(1000):
            for envelope in await right.relay.claim("relay.agent.x"):
                await right.relay.complete("relay.agent.x", envelope.id)
            if "put off" not in right.detail:
                break
            await asyncio.sleep(0.01)
        assert right.detail.startswith("stream RELAY at")
        assert "put off" not in right.detail


async def test_what_lacks_a_binding_is_settled_and_does_not_come_again(server: NatsServer, tmp_path: Path) -> None:
    people = config(server, export=[], **{"import": ["relay.human.>"]}, refusedDelaySecs=0.1)
    async with side(tmp_path / "2", people) as right, server.client() as client:
        telegram = SampleAdapter("telegram", ("relay.human.>",))
        telegram.bound = True  # type: ignore[attr-defined]  # one of the optional ones
        await right.relay.add_adapter(telegram)

        for n in range(3):
            headers = {"relay-from": "relay.agent.x"}
            await client.jetstream().publish(f"relay.human.telegram.{n}", b"1", headers=headers)

        await settled(client, right)
        assert (await client.jetstream().consumer_info("RELAY", right.durable)).num_redelivered == 0
        assert telegram.got == []
        assert "put off" not in right.detail


async def test_what_the_rules_deny_is_settled_and_traced(server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "2").mkdir(mode=0o700)
    rule = {"from": "relay.agent.evil", "to": "relay.agent.x", "action": "deny", "priority": 10}
    (tmp_path / "2/access-rules.json").write_bytes(orjson.dumps([rule]))
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server)) as right,
        server.client() as client,
    ):
        await right.agent("relay.agent.x")

        await left.relay.publish("relay.agent.x", "bad", sender="relay.agent.evil")
        await left.relay.publish("relay.agent.x", "good", sender="relay.agent.a")

        await settled(client, right)
        await until(lambda: bool(right.got))
        assert right.got == [("relay.agent.x", "good")]


async def test_what_broken_rules_deny_comes_again_when_they_are_repaired(server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "2").mkdir(mode=0o700)
    rules = tmp_path / "2/access-rules.json"
    rules.write_text("broken")
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, refusedDelaySecs=0.1), endpoints=["relay.agent.x"]) as right,
    ):
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        async with server.client() as client:
            js, durable = client.jetstream(), right.durable
            for _ in range(1000):
                if (await js.consumer_info("RELAY", durable)).num_redelivered:
                    break
                await asyncio.sleep(0.01)

        assert "1 rules broken" in right.detail
        rules.write_text("[]")
        right.relay.reload()

        await until(lambda: any(box.depth for box in right.relay.mailboxes()))


async def test_a_refusal_that_left_a_dead_letter_is_settled(server: NatsServer, tmp_path: Path) -> None:
    full = RelayConfig.model_validate(
        {"durability": "os", "reliability": {"backpressure": {"maxMailboxSize": 1}, "rateLimit": {"enabled": False}}}
    )
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server, refusedDelaySecs=0.1), relay_config=full) as right,
        server.client() as client,
    ):
        await right.relay.register_endpoint("relay.agent.x")
        await left.relay.publish("relay.agent.x", "fills it", sender="relay.agent.a")
        await settled(client, right)
        await right.relay.add_adapter(SampleAdapter(patterns=["relay.agent.x"], platform=refuse))

        await left.relay.publish("relay.agent.x", "too much", sender="relay.agent.a")

        await settled(client, right)
        assert [letter.code for letter in await right.relay.dead_letters()] == ["adapter_failed"]


async def test_a_message_without_a_local_consumer_is_a_dead_letter_and_settled(
    server: NatsServer, tmp_path: Path
) -> None:
    async with (
        side(tmp_path / "1", config(server)) as left,
        side(tmp_path / "2", config(server)) as right,
        server.client() as client,
    ):
        await left.relay.publish("relay.agent.nobody", 1, sender="relay.agent.a")

        await settled(client, right)
        assert [letter.code for letter in await right.relay.dead_letters()] == ["no_match"]


@pytest.mark.parametrize("subject", ["relay.system.log", "relay.adapter.other"])
async def test_the_buss_own_subjects_stay_here_and_nothing_fails(
    server: NatsServer, tmp_path: Path, subject: str
) -> None:
    async with side(tmp_path / "1", config(server, export=["relay.>"])) as left, server.client() as client:
        result = await left.relay.publish(subject, {"secret": 1}, sender="relay.agent.a")
        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")
        await left.relay.idle()

        info = await client.jetstream().stream_info("RELAY", subjects_filter=">")
        assert info.state.subjects == {"relay.agent.x": 1}
        assert await left.relay.dead_letters() == []
        assert left.relay.adapters()[0].failed == 0
        assert "not exported" in repr(await left.relay.trace(result.message_id))


@pytest.mark.parametrize(
    ("about", "why"),
    [
        pytest.param({"reply_to": "relay.adapter.hook"}, "relay-reply-to", id="reply-to-an-adapter"),
        pytest.param({"reply_to": "relay.system.bus"}, "relay-reply-to", id="reply-to-the-bus"),
        pytest.param(
            {"budget": {"ancestorChain": [f"relay.agent.q{n}" for n in range(64)]}}, "at most 64", id="ancestors"
        ),
    ],
)
async def test_what_no_relay_would_let_in_fails_where_it_was_sent(
    server: NatsServer, tmp_path: Path, about: dict[str, Any], why: str
) -> None:
    budget = RELAXED.budget.model_copy(update={"max_hops": 100, "call_budget": 100})
    deep = RELAXED.model_copy(update={"budget": budget})
    async with side(tmp_path / "1", config(server), relay_config=deep) as left, server.client() as client:
        result = await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a", **about)

        assert result.delivered_to == 0
        (letter,) = [letter for letter in await left.relay.dead_letters() if letter.message_id == result.message_id]
        assert letter.code == "adapter_failed"
        assert why in (letter.reason or "")
        assert (await client.jetstream().stream_info("RELAY")).state.messages == 0


async def test_a_message_does_not_come_round_over_two_streams(server: NatsServer, tmp_path: Path) -> None:
    there, back = (
        config(server, stream=name, prefix=name.lower(), export=["relay.agent.x"], **{"import": ["relay.agent.x"]})
        for name in ("THERE", "BACK")
    )

    def only(which: NatsConfig, way: str) -> NatsConfig:
        return which.model_copy(update={way: ()})

    # One sends on the first stream and hears the second, the other one does the opposite.
    async with (
        side(tmp_path / "1", only(there, "import_")) as left,
        side(tmp_path / "2", only(there, "export")) as right,
        server.client() as client,
    ):
        await left.relay.add_adapter(NatsAdapter("back", only(back, "export")))
        await right.relay.add_adapter(NatsAdapter("back", only(back, "import_")))
        for each in (left, right):
            await each.agent("relay.agent.x")

        await left.relay.publish("relay.agent.x", 1, sender="relay.agent.a")

        await until(lambda: len(right.got) == 1)
        js = client.jetstream()
        durable = left.durable.replace("-nats", "-back")
        for _ in range(1000):
            info = await js.consumer_info("BACK", durable)
            if info.ack_floor is not None and info.ack_floor.stream_seq == 1:
                break
            await asyncio.sleep(0.01)
        assert (await js.stream_info("BACK")).state.messages == 1
        assert len(left.got) == len(right.got) == 1


async def test_bridges_of_one_relay_have_one_name(server: NatsServer, tmp_path: Path) -> None:
    async with side(tmp_path / "1", config(server)) as left:
        second = NatsAdapter("second", config(server))
        await left.relay.add_adapter(second)

        assert second._relay == left.adapter._relay
        async with server.client() as client:
            consumers = await client.jetstream().consumers_info("RELAY")
        assert sorted(info.name for info in consumers) == [left.durable, f"relay-{second._relay}-second"]

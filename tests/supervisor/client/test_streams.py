"""Streams: a message is acknowledged after the caller's loop body, and a stream outlives the supervisor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import AccessDenied, Closed, InvalidSubject, ProtocolError, Signal
from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import Code
from relay_core.messages.signals import SignalType
from relay_core.protocol.frames import encode_notification, encode_result
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import ALL, A, B
from tests.kit.daemon import a_daemon
from tests.kit.servers.proxy import Wire
from tests.kit.supervisor import a_client
from tests.kit.waiting import until

pytestmark = pytest.mark.bus(endpoints=[A, B])


def state(supervisor: Supervisor, subject: str = A) -> tuple[int, int, int]:
    """Return the number of waiting, in-flight and failed messages of a mailbox."""
    (box,) = [box for box in supervisor.context.relay.mailboxes() if box.subject == subject]
    return box.depth, box.claimed, box.failed


async def publish(client: RelayClient, *payloads: object, to: str = A) -> None:
    for payload in payloads:
        await client.publish(to, payload, sender="relay.agent.s")


async def test_a_message_is_acknowledged_on_the_next_step_and_not_before(
    supervisor: Supervisor, client: RelayClient
) -> None:
    data_dir = supervisor.context.relay.data_dir.path
    await publish(client, 1, 2, 3)
    seen = []
    async with client.subscribe(A) as messages:
        async for envelope in messages:
            seen.append(envelope.payload)
            await client.call("server.ping")  # whatever was said before has arrived now
            assert state(supervisor) == (3 - len(seen), 1, 0)
            await until(lambda: len(list(data_dir.glob("mailboxes/*/cur/*.json"))) == 1)
            if len(seen) == 3:
                break
    assert seen == [1, 2, 3]
    await until(lambda: state(supervisor) == (0, 0, 0))


@pytest.mark.parametrize("how", ["async with", "client exit", "close"])
async def test_leaving_the_loop_acknowledges_and_takes_nothing_more(supervisor: Supervisor, how: str) -> None:
    async with a_client(supervisor) as client:
        await publish(client, 1, 2, 3)
        messages = client.subscribe(A)
        if how == "async with":
            async with messages:
                async for _ in messages:
                    break
        else:
            async for _ in messages:
                break
        if how == "close":
            await messages.close()
    await until(lambda: state(supervisor)[1] == 0)
    assert state(supervisor) == (2, 0, 0)
    assert supervisor.context.relay.subscriptions() == []


@pytest.mark.parametrize("within", ["the stream", "the client"])
@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("no ink"), "ValueError: no ink"), (KeyError(), "KeyError")],
    ids=["with-text", "without"],
)
async def test_a_body_that_raises_makes_a_dead_letter(
    supervisor: Supervisor, within: str, error: Exception, reason: str
) -> None:
    async def consume() -> None:
        async with a_client(supervisor, name="scribe") as client:
            await publish(client, 1, 2)
            if within == "the stream":
                async with client.subscribe(A) as messages:
                    async for _ in messages:
                        raise error
            else:
                async for _ in client.subscribe(A):
                    raise error

    with pytest.raises(type(error)):
        await consume()
    await until(lambda: state(supervisor) == (1, 0, 1))
    (letter,) = await supervisor.context.relay.dead_letters()
    assert letter.code == Code.CONSUMER_FAILED
    assert letter.reason.endswith(reason)
    assert letter.envelope is not None
    assert letter.envelope.payload == 1


async def test_a_loop_that_is_cancelled_makes_a_dead_letter_of_what_it_had_in_hand(
    supervisor: Supervisor, client: RelayClient
) -> None:
    await publish(client, 1, 2)
    in_hand = asyncio.Event()

    async def consume() -> None:
        async with client.subscribe(A) as messages:
            async for _ in messages:
                in_hand.set()
                await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        consuming = group.create_task(consume())
        await in_hand.wait()
        consuming.cancel()
    await until(lambda: state(supervisor) == (1, 0, 1))


async def test_a_loop_that_is_cancelled_while_it_waits_fails_nothing(
    supervisor: Supervisor, client: RelayClient
) -> None:
    async def consume() -> None:
        async with asyncio.timeout(0.05), client.subscribe(A) as messages:
            async for _ in messages:
                pass

    with pytest.raises(TimeoutError):
        await consume()
    await publish(client, 1)
    assert state(supervisor) == (1, 0, 0)


async def test_a_message_can_be_failed_or_acknowledged_by_hand(supervisor: Supervisor, client: RelayClient) -> None:
    await publish(client, 1, 2, 3)
    async with client.subscribe(A) as messages:
        async for envelope in messages:
            if envelope.payload == 1:
                messages.fail("not this one")
            elif envelope.payload == 2:
                messages.ack()
                await until(lambda: state(supervisor) == (0, 1, 1))
            else:
                break
    (letter,) = await client.dead_letters()
    assert "not this one" in letter.reason


async def test_awaiting_a_subscription_begins_it_at_once(supervisor: Supervisor, client: RelayClient) -> None:
    lazy = client.subscribe(A)
    await client.call("server.ping")
    assert supervisor.context.relay.subscriptions() == []
    messages = await client.subscribe(B)
    assert [subscription.pattern for subscription in supervisor.context.relay.subscriptions()] == [B]
    assert (await messages).closed is False
    assert len(supervisor.context.relay.subscriptions()) == 1
    await messages.close()
    assert supervisor.context.relay.subscriptions() == []
    await lazy.close()
    with pytest.raises(Closed):
        await lazy


async def test_a_bad_pattern_is_refused_where_it_is_begun(client: RelayClient) -> None:
    with pytest.raises(InvalidSubject):
        await client.subscribe("a..b")
    with pytest.raises(InvalidSubject):
        async for _ in client.signals("a..b"):
            pass


async def test_two_subscriptions_of_one_client_do_not_wait_for_each_other(
    supervisor: Supervisor, client: RelayClient
) -> None:
    async with client.subscribe(A) as first, client.subscribe(B) as second:
        await publish(client, 1, 2)
        await publish(client, "x", "y", to=B)
        assert (await anext(first)).payload == 1
        assert [(await anext(second)).payload for _ in range(2)] == ["x", "y"]
        assert (await anext(first)).payload == 2
    await until(lambda: state(supervisor) == state(supervisor, B) == (0, 0, 0))


async def test_unread_messages_in_flight_are_dead_lettered_when_the_stream_is_closed(
    supervisor: Supervisor, client: RelayClient
) -> None:
    await publish(client, 1, 2)
    await publish(client, "x", "y", to=B)
    async with client.subscribe(ALL, max_in_flight=2) as messages:
        async for _ in messages:
            await until(lambda: state(supervisor)[1] == state(supervisor, B)[1] == 1)
            break
    await until(lambda: state(supervisor)[1] == state(supervisor, B)[1] == 0)
    assert state(supervisor)[0] == state(supervisor, B)[0] == 1
    (letter,) = await client.dead_letters()
    assert "closed" in letter.reason


async def test_closing_ends_a_loop_that_waits(supervisor: Supervisor, client: RelayClient) -> None:
    messages = await client.subscribe(A)
    seen = []

    async def consume() -> None:
        async for envelope in messages:
            seen.append(envelope.payload)

    async with asyncio.TaskGroup() as group:
        group.create_task(consume())
        await publish(client, 1)
        await until(lambda: seen == [1] and state(supervisor) == (0, 0, 0))
        await messages.close()
        await messages.close()


async def test_a_cancelled_beginning_leaves_no_subscription(
    supervisor: Supervisor, wired: tuple[RelayClient, Wire]
) -> None:
    client, wire = wired
    await publish(client, 1, 2)
    wire.held.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.subscribe(A)
    await until(lambda: len(supervisor.context.relay.subscriptions()) == 1)
    wire.held.set()
    await until(lambda: not supervisor.context.relay.subscriptions())
    await until(lambda: state(supervisor) == (1, 0, 1))
    await until(lambda: not client._streams)
    assert client._early == {}
    (letter,) = await client.dead_letters()
    assert "closed" in letter.reason
    assert [message.payload for message in await client.inbox(A)] == [2]


async def test_a_stream_that_is_closed_while_it_begins_leaves_no_subscription(
    supervisor: Supervisor, wired: tuple[RelayClient, Wire]
) -> None:
    client, wire = wired
    messages = client.subscribe(A)

    async def consume() -> list[object]:
        return [envelope.payload async for envelope in messages]

    async with asyncio.TaskGroup() as group:
        wire.held.clear()
        consuming = group.create_task(consume())
        await until(lambda: "subscribe" in wire.asked)
        await messages.close()
        wire.held.set()
    assert consuming.result() == []
    await until(lambda: not supervisor.context.relay.subscriptions())
    await until(lambda: not client._streams)


async def test_a_subscription_goes_on_after_a_cut_and_what_was_in_hand_is_parked(
    supervisor: Supervisor, wired: tuple[RelayClient, Wire]
) -> None:
    client, wire = wired
    await publish(client, 1, 2, 3)
    seen = []
    async with client.subscribe(A) as messages:
        async for envelope in messages:
            seen.append(envelope.payload)
            if envelope.payload == 1:
                wire.cut()
                await until(lambda: state(supervisor)[1] == 0)
            if envelope.payload == 3:
                break
    assert seen == [1, 2, 3]
    await until(lambda: state(supervisor) == (0, 0, 1))
    (letter,) = await client.dead_letters()
    assert letter.code == Code.DISCONNECTED
    assert letter.envelope is not None
    assert letter.envelope.payload == 1


async def test_a_subscription_goes_on_after_a_kill_and_delivers_the_backlog(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        await other.register_endpoint(A)
        await publish(other, 1, 2, 3)
        seen = []
        async with client.subscribe(A) as messages:
            async for envelope in messages:
                seen.append(envelope.payload)
                if envelope.payload == 2:
                    await daemon.kill()
                    await daemon.start()
                    await publish(other, 4)
                if envelope.payload == 4:
                    break
        assert seen == [1, 2, 3, 4]
        parked = [(letter.code, letter.envelope and letter.envelope.payload) for letter in await other.dead_letters()]
        assert (Code.INTERRUPTED, 2) in parked
        # The last acknowledgement before a kill may not have been read.
        assert set(parked) <= {(Code.INTERRUPTED, 2), (Code.INTERRUPTED, 1)}
        assert await other.inbox(A) == []


async def test_a_subscription_whose_token_was_removed_ends_with_an_error(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as operator:
        token = await operator.add_token(A)
        async with a_client(supervisor, token=token.token) as client, asyncio.TaskGroup() as group:
            messages = await client.subscribe(A)

            async def consume() -> None:
                with pytest.raises(AccessDenied):
                    await anext(messages)

            group.create_task(consume())
            (known,) = await operator.tokens()
            await operator.remove_token(known.id)


async def test_a_watch_goes_on_with_the_whole_state(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client, client.watch() as watch:
        state = await anext(watch)
        assert watch.update is not None
        assert watch.update.full
        assert state.mailboxes == {}
        await client.register_endpoint(A)
        while not state.mailboxes:
            await anext(watch)
        assert [mailbox.subject for mailbox in state.mailboxes.values()] == [A]
        await daemon.kill()
        await daemon.start()
        while not watch.update.full or len(watch.update.mailboxes) != 1:
            await anext(watch)
        assert [mailbox.subject for mailbox in state.mailboxes.values()] == [A]
        await client.unregister_endpoint(A)
        while any(mailbox.registered for mailbox in state.mailboxes.values()):
            await anext(watch)


async def test_signals_are_passed_on_also_after_a_cut(supervisor: Supervisor, wired: tuple[RelayClient, Wire]) -> None:
    client, wire = wired
    signal = Signal(type=SignalType.TYPING, state="active", endpoint_subject=B, timestamp="2026-01-01T00:00:00.000Z")
    async with client.signals("relay.agent.>") as signals:
        await client.signal(A, signal)
        assert await anext(signals) == (A, signal)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(anext(signals))
            wire.cut()
            await until(lambda: wire.asked.count("signal.subscribe") == 2)
            await client.signal(B, signal)
            assert await waiting == (B, signal)


@pytest.mark.parametrize("envelope", [None, "text", {}, {"id": "x", "budget": {}}], ids=repr)
async def test_a_message_that_is_no_envelope_is_a_bad_answer(tmp_path: Path, envelope: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = {"protocol": 1, "version": "9", "pid": 1, "dataDir": str(tmp_path), "operator": True}
        async for line in reader:
            request = orjson.loads(line)
            if request["method"] == "server.hello":
                writer.write(encode_result(request["id"], hello))
            elif request["method"] == "subscribe":
                writer.write(encode_result(request["id"], {"subscriptionId": "s"}))
                note = {"subscriptionId": "s", "deliveryId": "1", "envelope": envelope}
                writer.write(encode_notification("message", note))
            else:
                writer.write(encode_result(request.get("id"), {}))
        writer.close()

    path = tmp_path / "relay.sock"
    async with await asyncio.start_unix_server(serve, path), RelayClient(path) as client:
        with pytest.raises(ProtocolError, match="unexpected response to subscribe") as refused:
            await anext(client.subscribe(A))
        assert refused.value.code == "bad_answer"

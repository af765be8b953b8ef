"""Messages in the hands of socket clients: each is answered once, by its holder, who gets no more than it asked for."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.config import DispatchConfig, LimitsConfig, RelayConfig
from relay_core.core import RelayCore
from relay_core.dispatch.subscriptions import Subscription
from relay_core.dispatch.worker_pool import Pool
from relay_core.errors import Closed
from relay_core.messages.dead_letter import DeadLetter
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.messages.trie import _Level
from relay_core.testing import FakeClock
from relay_supervisor.api.consumers import _Push
from relay_supervisor.server.connection import Connection
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import UNHEARD, A
from tests.kit.daemon import UNLIMITED
from tests.kit.raw_client import Raw, kind, request
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until

pytestmark = pytest.mark.bus(endpoints=[A])


@pytest.fixture
async def raw(supervisor: Supervisor) -> AsyncIterator[Raw]:
    async with Raw(supervisor.socket) as connected:
        yield connected


async def publish(relay: RelayCore, subject: str = A, payload: Any = None) -> str:
    return (await relay.publish(subject, payload or {"content": "hi"}, sender="relay.agent.s")).message_id


async def letters(relay: RelayCore, count: int) -> list[DeadLetter]:
    async def parked() -> bool:
        return len(await relay.dead_letters()) >= count

    await until(parked)
    found = await relay.dead_letters()
    assert len(found) == count
    return found


def depth(relay: RelayCore, subject: str = A) -> int:
    return next(mailbox.depth for mailbox in relay.mailboxes() if mailbox.subject == subject)


def state(relay: RelayCore) -> tuple[int, int]:
    """Return how many messages of the only mailbox are waiting, and how many are claimed."""
    (mailbox,) = relay.mailboxes()
    return mailbox.depth, mailbox.claimed


async def test_a_pushed_message_is_finished_by_its_ack(raw: Raw, relay: RelayCore) -> None:
    subscribed = await raw.call("subscribe", pattern=A)
    message_id = await publish(relay)
    note = await raw.note()
    assert note["subscriptionId"] == subscribed["subscriptionId"]
    assert note["envelope"]["id"] == message_id
    assert await raw.call("ack", deliveryId=note["deliveryId"]) == {}
    await relay.idle()
    assert [span.status for span in await relay.trace(message_id)] == ["done"]
    assert depth(relay) == 0
    assert await relay.dead_letters() == []


async def test_messages_that_waited_are_pushed_oldest_first_and_one_at_a_time(raw: Raw, relay: RelayCore) -> None:
    sent = [await publish(relay) for _ in range(5)]
    await raw.call("subscribe", pattern=A)
    got = []
    for _ in sent:
        note = await raw.note()
        got.append(note["envelope"]["id"])
        assert not raw.notes  # nothing beyond the one in hand
        await raw.call("ack", deliveryId=note["deliveryId"])
    assert got == sent


async def test_fail_parks_the_message_with_the_reason(raw: Raw, relay: RelayCore) -> None:
    await raw.call("server.hello", client="worker 7")
    await raw.call("subscribe", pattern=A)
    message_id = await publish(relay)
    await raw.call("fail", deliveryId=(await raw.note())["deliveryId"], reason="the tool crashed")
    [letter] = await letters(relay, 1)
    assert letter.message_id == message_id
    assert letter.code == "consumer_failed"
    assert "the tool crashed" in letter.reason
    assert "worker 7" in letter.reason


@pytest.mark.parametrize("second", ["ack", "fail"])
@pytest.mark.parametrize("first", ["ack", "fail"])
async def test_a_delivery_is_answered_once(raw: Raw, relay: RelayCore, first: str, second: str) -> None:
    await raw.call("subscribe", pattern=A)
    await publish(relay)
    delivery = (await raw.note())["deliveryId"]
    reason = {"ack": {}, "fail": {"reason": "no"}}
    asked = [raw.ask(word, deliveryId=delivery, **reason[word]) for word in (first, second)]  # at the same moment
    assert (await raw.answer(asked[0]))["result"] == {}
    assert kind(await raw.answer(asked[1]))[0] == "NotFound"
    assert (await raw.refusal(second, deliveryId=delivery, **reason[second]))[0] == "NotFound"
    await relay.idle()
    assert len(await relay.dead_letters()) == (first == "fail")


async def test_a_delivery_can_be_answered_by_its_holder_alone(
    raw: Raw, relay: RelayCore, supervisor: Supervisor
) -> None:
    await raw.call("subscribe", pattern=A)
    await publish(relay)
    delivery = (await raw.note())["deliveryId"]
    async with Raw(supervisor.socket) as other:
        assert (await other.refusal("ack", deliveryId=delivery))[0] == "NotFound"
        assert (await other.refusal("fail", deliveryId=delivery, reason="mine"))[0] == "NotFound"
    await raw.call("ack", deliveryId=delivery)
    await relay.idle()
    assert await relay.dead_letters() == []


async def test_max_in_flight_1_pushes_one_at_a_time_mailbox_after_mailbox_and_the_rest_waits_in_new(
    raw: Raw, relay: RelayCore
) -> None:
    subjects = [f"relay.many.m{number}" for number in range(5)]
    for subject in subjects:
        await relay.register_endpoint(subject)
        for _ in range(4):
            await publish(relay, subject)
    await raw.call("subscribe", pattern="relay.many.*", maxInFlight=1)
    seen = []
    for handled in range(20):
        note = await raw.note()
        seen.append(note["envelope"]["subject"])
        await raw.call("server.ping")
        assert not raw.notes  # no second one before this one is answered
        assert sum(depth(relay, subject) for subject in subjects) == 20 - handled - 1
        await raw.call("ack", deliveryId=note["deliveryId"])
    for turn in range(4):
        assert sorted(seen[turn * 5 : turn * 5 + 5]) == subjects  # each once before any a second time
    await relay.idle()
    assert await relay.dead_letters() == []


async def test_what_waits_for_its_turn_never_times_out(data_dir: Path) -> None:
    config = RelayConfig(durability="os", dispatch=DispatchConfig(handler_timeout_ms=300))
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as raw:
        relay = supervisor.context.relay
        subjects = [f"relay.many.m{number}" for number in range(3)]
        for subject in subjects:
            await relay.register_endpoint(subject)
            await publish(relay, subject)
        await raw.call("subscribe", pattern="relay.many.*", maxInFlight=1)
        for parked in range(3):  # none is answered, so each takes the whole timeout, and the others wait for it
            await raw.note()
            found = await relay.dead_letters()
            assert len(found) == parked
            assert sum(depth(relay, subject) for subject in subjects) == 3 - parked - 1
        assert [letter.code for letter in await letters(relay, 3)] == ["timeout"] * 3


async def test_after_unsubscribe_the_one_in_hand_can_still_be_answered_and_no_more_come(
    raw: Raw, relay: RelayCore
) -> None:
    subscribed = await raw.call("subscribe", pattern=A)
    first, second = await publish(relay), await publish(relay)
    delivery = (await raw.note())["deliveryId"]
    await raw.call("unsubscribe", **subscribed)
    assert (await raw.refusal("unsubscribe", **subscribed))[0] == "NotFound"
    await raw.call("ack", deliveryId=delivery)
    await relay.idle()
    assert [span.status for span in await relay.trace(first)] == ["done"]
    assert [envelope.id for envelope in await relay.inbox(A)] == [second]
    await raw.call("server.ping")
    assert not raw.notes


async def test_a_message_too_large_for_a_frame_is_parked_and_the_next_one_comes(data_dir: Path) -> None:
    config = RelayConfig(durability="os", limits=LimitsConfig(max_payload_bytes=8 * 1024 * 1024))
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as raw:
        relay = supervisor.context.relay
        await relay.register_endpoint(A)
        large = await publish(relay, payload={"content": "x" * (5 * 1024 * 1024)})
        assert (await raw.refusal("inbox.peek", subject=A)) == ("ProtocolError", "frame_too_large")
        small = await publish(relay)
        await raw.call("subscribe", pattern=A)
        note = await raw.note()
        assert note["envelope"]["id"] == small
        await raw.call("ack", deliveryId=note["deliveryId"])
        [letter] = await letters(relay, 1)
        assert (letter.message_id, letter.code) == (large, "consumer_failed")
        assert "frame" in letter.reason


async def test_two_subscribers_of_one_mailbox_both_get_the_message(
    raw: Raw, relay: RelayCore, supervisor: Supervisor
) -> None:
    async with Raw(supervisor.socket) as other:
        await raw.call("subscribe", pattern=A)
        await other.call("subscribe", pattern="relay.agent.*")
        first, second = await publish(relay), await publish(relay)
        note = await raw.note()
        assert note["envelope"]["id"] == first
        await raw.call("ack", deliveryId=note["deliveryId"])
        await raw.call("server.ping")
        assert not raw.notes  # the other one still has the first in hand
        note = await other.note()
        assert note["envelope"]["id"] == first
        await other.call("fail", deliveryId=note["deliveryId"], reason="not me")
        assert [(await client.note())["envelope"]["id"] for client in (raw, other)] == [second, second]
    assert [span.status for span in await relay.trace(first)] == ["partial"]
    assert await relay.dead_letters() == []


async def test_a_claim_is_finished_once_and_is_in_hand_no_longer(
    raw: Raw, relay: RelayCore, supervisor: Supervisor
) -> None:
    done, failed = await publish(relay), await publish(relay)
    assert len((await raw.call("inbox.claim", subject=A, limit=5))["messages"]) == 2
    assert len(supervisor.context.claims.pending()) == 2
    await raw.call("inbox.complete", subject=A, id=done)
    await raw.call("inbox.fail", subject=A, id=failed, reason="no")
    assert supervisor.context.claims.pending() == []
    for id in (done, failed):
        assert (await raw.refusal("inbox.complete", subject=A, id=id))[0] == "NotFound"
    await raw.close()
    await until(lambda: not supervisor.context.connections)
    [letter] = await relay.dead_letters()
    assert (letter.message_id, letter.code) == (failed, "consumer_failed")


async def test_claims_fit_into_an_answer_and_the_rest_stays(raw: Raw, relay: RelayCore) -> None:
    for _ in range(6):
        await publish(relay, payload={"content": "x" * 700_000})
    taken = (await raw.call("inbox.claim", subject=A, limit=100))["messages"]
    assert len(taken) == 3
    assert depth(relay) == 3
    assert len((await raw.call("inbox.peek", subject=A, limit=100))["messages"]) == 2


@pytest.mark.parametrize("lease_ms", [None, 5000], ids=["for the connection", "for a time"])
async def test_nothing_is_claimed_for_a_connection_that_is_gone(
    raw: Raw, relay: RelayCore, supervisor: Supervisor, lease_ms: int | None
) -> None:
    await publish(relay)
    await raw.call("server.ping")
    [connection] = supervisor.context.connections
    await raw.close()
    await until(lambda: connection.closed)
    with pytest.raises(Closed):
        await supervisor.context.claims.claim(connection, A, 1, lease_ms)
    assert depth(relay) == 1
    assert await relay.dead_letters() == []


async def test_of_claims_cut_off_each_message_is_parked_or_still_waits(
    raw: Raw, relay: RelayCore, supervisor: Supervisor
) -> None:
    sent = [await publish(relay) for _ in range(50)]
    for _ in sent:
        raw.ask("inbox.claim", subject=A)
    raw.writer.transport.abort()

    async def settled() -> bool:
        return depth(relay) + len(await relay.dead_letters()) == len(sent)

    await until(lambda: not supervisor.context.connections)
    await until(settled)
    parked = await relay.dead_letters()
    assert {letter.code for letter in parked} <= {"disconnected"}
    waiting = [envelope.id for envelope in await relay.inbox(A, 50)]
    assert sorted([*waiting, *(letter.message_id for letter in parked)]) == sorted(sent)


@contextmanager
def a_journal_that_takes_nothing() -> Iterator[None]:
    """Let no file of this process grow; small ones can still be removed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FSYNC = {**UNLIMITED, "durability": "fsync"}


@pytest.mark.parametrize("queue", [None, "workers"])
@pytest.mark.parametrize("then", ["ack", "fail", "gone"])
async def test_an_ack_that_cannot_be_written_is_an_error_and_leaves_the_message_in_hand(
    data_dir: Path, then: str, queue: str | None
) -> None:
    async with a_supervisor(data_dir, FSYNC) as supervisor:
        relay = supervisor.context.relay
        await relay.register_endpoint(A)
        async with Raw(supervisor.socket) as raw:
            await raw.call("subscribe", pattern=A, **({"queue": queue, "starts": True} if queue else {}))
            message_id = await publish(relay)
            delivery_id = (await raw.note())["deliveryId"]
            if queue:
                await raw.call("start", deliveryId=delivery_id)
            with a_journal_that_takes_nothing():
                for _ in range(2):
                    assert (await raw.refusal("ack", deliveryId=delivery_id))[0] == "StorageError"
            assert relay.mailboxes()[0].claimed == 1
            if then == "ack":
                assert await raw.call("ack", deliveryId=delivery_id) == {}
                assert (await raw.refusal("ack", deliveryId=delivery_id))[0] == "NotFound"
                await relay.idle()
                assert await relay.dead_letters() == []
                assert [span.status for span in await relay.trace(message_id)] == ["done"]
                return
            if then == "fail":
                await raw.call("fail", deliveryId=delivery_id, reason="no")
                (letter,) = await letters(relay, 1)
                assert (letter.code, letter.reason) == ("consumer_failed", "socket client: no")
                return
        (letter,) = await letters(relay, 1)
        assert letter.code == "disconnected"


async def test_an_ack_without_an_answer_is_taken_and_written_when_the_disk_lets_it(
    data_dir: Path, clock: FakeClock
) -> None:
    async with a_supervisor(data_dir, FSYNC, clock) as supervisor, Raw(supervisor.socket) as raw:
        relay = supervisor.context.relay
        await relay.register_endpoint(A)
        await raw.call("subscribe", pattern=A)
        ids = [await publish(relay) for _ in range(2)]
        first = await raw.note()
        with a_journal_that_takes_nothing():
            raw.send(request("ack", {"deliveryId": first["deliveryId"]}))
            await until(lambda: relay.mailboxes()[0].degraded)
            assert state(relay) == (1, 1)  # the second one does not begin: that could not be recorded

        def is_written() -> bool:
            clock.advance(1)
            return state(relay) == (0, 1)

        await until(is_written)
        assert await raw.call("ack", deliveryId=(await raw.note())["deliveryId"]) == {}
        assert state(relay) == (0, 0)
        assert [span.status for id in ids for span in await relay.trace(id)] == ["done", "done"]
        assert relay.mailboxes()[0].degraded is None
    async with RelayCore(data_dir) as relay:
        assert await relay.dead_letters() == []
        assert depth(relay) == 0


async def test_of_two_subscribers_each_ack_is_answered_and_the_last_ends_the_message(
    supervisor: Supervisor, raw: Raw, relay: RelayCore
) -> None:
    async with Raw(supervisor.socket) as other:
        for client in (raw, other):
            await client.call("subscribe", pattern=A)
        await publish(relay)
        ids = [(await client.note())["deliveryId"] for client in (raw, other)]
        assert await raw.call("ack", deliveryId=ids[0]) == {}
        assert relay.mailboxes()[0].claimed == 1
        assert await other.call("ack", deliveryId=ids[1]) == {}
        await relay.idle()
        assert relay.mailboxes()[0].claimed == 0
        assert await relay.dead_letters() == []


async def test_acks_that_expect_no_answer_are_recorded_by_one_append(
    raw: Raw, relay: RelayCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await relay.register_endpoint(f"relay.many.m{number}")
    await raw.call("subscribe", pattern="relay.many.*", maxInFlight=5)
    for _ in range(2):
        await relay.publish("relay.many.*", 1, sender="relay.agent.s")
    held = [(await raw.note())["deliveryId"] for _ in range(5)]
    appended: list[list[str]] = []
    append = relay.bus.journal.append

    def noting(lines: Sequence[bytes], *, hold: int | None = None) -> None:
        append(lines, hold=hold)
        appended.append([op for line in lines for op, *_ in orjson.loads(line)["ops"]])

    monkeypatch.setattr(relay.bus.journal, "append", noting)
    raw.send(b"".join(request("ack", {"deliveryId": delivery_id}) for delivery_id in held))
    for _ in held:
        assert (await raw.note())["envelope"]["payload"] == 1
    assert appended == [["gone"] * 5 + ["begun"] * 5]


@pytest.mark.parametrize("waits", [False, True], ids=["handed over at once", "a file first"])
async def test_a_pushed_envelope_has_the_wire_form_of_the_message(raw: Raw, relay: RelayCore, waits: bool) -> None:
    if not waits:
        await raw.call("subscribe", pattern=A)
    parent = await publish(relay, UNHEARD)
    await relay.publish(A, None, sender="relay.agent.s")
    await relay.publish(A, {"é": [1, "\n"]}, sender="relay.agent.s", reply_to="relay.agent.s", parent_id=parent)
    if waits:
        await relay.idle()
        await raw.call("subscribe", pattern=A)
    for _ in range(2):
        note = await raw.note()
        assert set(note) == {"subscriptionId", "deliveryId", "envelope"}
        assert Envelope.model_validate(note["envelope"]).to_wire() == note["envelope"]
        mailbox = relay.bus.mailboxes.get(subject_hash(A))
        assert mailbox is not None
        assert note["envelope"] == mailbox.claimed[note["envelope"]["id"]].envelope.to_wire()
        await raw.call("ack", deliveryId=note["deliveryId"])


async def test_a_lease_outlives_its_connection_until_it_runs_out(data_dir: Path) -> None:
    clock = FakeClock()
    async with a_supervisor(data_dir, clock=clock) as supervisor, AsyncExitStack() as stack:
        relay = supervisor.context.relay
        await relay.register_endpoint(A)
        kept, lost = await publish(relay), await publish(relay)
        first = await stack.enter_async_context(Raw(supervisor.socket))
        taken = (await first.call("inbox.claim", subject=A, limit=2, leaseMs=5000))["messages"]
        assert [message["id"] for message in taken] == [kept, lost]
        await first.close()
        await until(lambda: not supervisor.context.connections)
        second = await stack.enter_async_context(Raw(supervisor.socket))
        await second.call("inbox.complete", subject=A, id=kept)
        clock.advance(4.9)
        await asyncio.sleep(0)
        assert await relay.dead_letters() == []
        clock.advance(0.2)
        [letter] = await letters(relay, 1)
        assert (letter.message_id, letter.code) == (lost, "timeout")
        assert (await second.refusal("inbox.complete", subject=A, id=lost))[0] == "NotFound"
        clock.advance(10)
        await second.call("server.ping")
        assert len(await relay.dead_letters()) == 1


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_what_is_asked_in_one_breath_can_count_on_what_was_asked_before(data_dir: Path, durability: str) -> None:
    config = RelayConfig.model_validate({"durability": durability})
    async with a_supervisor(data_dir, config) as supervisor, Raw(supervisor.socket) as wire:
        subjects = [f"relay.agent.n{number}" for number in range(20)]
        asked = []
        for subject in subjects:
            wire.ask("endpoints.register", subject=subject)
            asked.append(wire.ask("publish", **{"subject": subject, "from": "relay.agent.s", "payload": subject}))
        answers = [frame for _ in range(40) if (frame := await wire.frame()) is not None]
        taken = {answer["id"]: answer["result"]["deliveredTo"] for answer in answers if answer["id"] in asked}
        assert taken == dict.fromkeys(asked, 1)


class Memory:
    """What subscriptions cost a supervisor: objects, and the sizes of its tables."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._deliveries = supervisor.context.consumers
        self._subscriptions = supervisor.context.relay.bus.subscriptions

    def objects(self) -> int:
        gc.collect()
        return sum(isinstance(item, Subscription | Pool | _Level | _Push | Connection) for item in gc.get_objects())

    def largest_table(self) -> int:
        """Return the bytes of the largest table: an emptied one may keep what it has grown to."""
        held = self._deliveries._subscriptions
        tables: list[Any] = [held, *held.values(), self._deliveries._pushed, self._deliveries._overdue]
        tables += [connection._cleanups for connection in held]
        tables += [self._subscriptions._trie._root.literals, self._subscriptions.pools._pools]
        return max(map(sys.getsizeof, tables))


@pytest.mark.parametrize("ending", ["unsubscribe", "close"])
async def test_thousands_of_subscriptions_over_a_socket_give_their_memory_back(
    supervisor: Supervisor, raw: Raw, ending: str
) -> None:
    memory = Memory(supervisor)
    await raw.call("inbox.peek", subject=A)
    before = memory.objects()
    small = sys.getsizeof(dict.fromkeys(range(10)))
    async with Raw(supervisor.socket) as other:
        asked = [
            other.ask("subscribe", pattern=f"x{n}.>", **({"queue": f"q{n}"} if n % 2 else {})) for n in range(2_000)
        ]
        made = [(await other.answer(id))["result"]["subscriptionId"] for id in asked]
        assert memory.objects() > before + 2_000
        assert memory.largest_table() > small
        if ending == "unsubscribe":
            for id in [other.ask("unsubscribe", subscriptionId=id) for id in made]:
                assert "result" in await other.answer(id)
            await until(lambda: memory.objects() == before + 1)  # the connection
            assert memory.largest_table() <= small
    await until(lambda: memory.objects() == before)
    assert memory.largest_table() <= small
    assert not supervisor.context.consumers._subscriptions

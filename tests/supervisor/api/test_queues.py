"""Pools on the socket: what a client has begun is known, so that its death costs that and nothing else."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core import InvalidSubject, ProtocolError
from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import Code
from relay_supervisor.supervisor import Supervisor
from tests.kit.daemon import OS, UNLIMITED, a_daemon
from tests.kit.raw_client import Raw, request
from tests.kit.servers.proxy import a_wire
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

JOBS = "relay.job.build"
SENDER = "relay.agent.boss"
IMPATIENT = {**UNLIMITED, "dispatch": {"handlerTimeoutMs": 100}}

pytestmark = pytest.mark.bus(endpoints=[JOBS])


def state(supervisor: Supervisor) -> tuple[int, int, int]:
    """Return the number of waiting, in-flight and failed messages."""
    (box,) = [box for box in supervisor.context.relay.mailboxes() if box.subject == JOBS]
    return box.depth, box.claimed, box.failed


async def publish(supervisor: Supervisor, *payloads: Any) -> None:
    for payload in payloads:
        await supervisor.context.relay.publish(JOBS, payload, sender=SENDER)


async def codes(supervisor: Supervisor) -> list[str]:
    return [letter.code for letter in await supervisor.context.relay.dead_letters()]


@asynccontextmanager
async def a_member(supervisor: Supervisor, **params: Any) -> AsyncIterator[Raw]:
    """Be a member by hand."""
    async with Raw(supervisor.socket) as raw:
        await raw.call("subscribe", **{"pattern": JOBS, "queue": "workers", "starts": True} | params)
        yield raw


async def given(raw: Raw) -> tuple[str, Any]:
    """Return the next message that a member is sent: its delivery and its payload."""
    note = await raw.note()
    return note["deliveryId"], note["envelope"]["payload"]


# What a member's end means


async def test_what_a_dead_client_had_begun_is_parked_and_the_rest_is_offered_to_others_in_order(
    supervisor: Supervisor,
) -> None:
    async with a_member(supervisor, maxInFlight=4) as dying:
        await publish(supervisor, 1, 2, 3, 4, 5)
        deliveries = [await given(dying) for _ in range(4)]
        assert [payload for _, payload in deliveries] == [1, 2, 3, 4]
        await dying.call("start", deliveryId=deliveries[1][0])
        await dying.close()
    await until(lambda: state(supervisor) == (4, 0, 1))
    assert await codes(supervisor) == [Code.DISCONNECTED]
    async with a_client(supervisor) as client, client.subscribe(JOBS, queue="workers") as messages:
        assert [(await anext(messages)).payload for _ in range(4)] == [1, 3, 4, 5]
    await until(lambda: state(supervisor) == (0, 0, 1))


async def test_without_that_promise_everything_sent_may_have_been_begun(supervisor: Supervisor) -> None:
    async with a_member(supervisor, maxInFlight=2, starts=False) as dying:
        await publish(supervisor, 1, 2, 3)
        for _ in range(2):
            await given(dying)
        await dying.close()
    await until(lambda: state(supervisor) == (1, 0, 2))
    assert await codes(supervisor) == [Code.DISCONNECTED] * 2


async def test_what_was_not_yet_sent_goes_back_in_line(supervisor: Supervisor) -> None:
    relay = supervisor.context.relay
    async with Raw(supervisor.socket) as raw:
        await raw.call("subscribe", pattern=JOBS, maxInFlight=1000, queue="workers")
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        big = "x" * 100_000
        for number in range(200):
            await relay.publish(JOBS, [number, big], sender=SENDER)
        await until(lambda: state(supervisor)[1] == 200)
        in_hand = len(supervisor.context.consumers.pending())
        assert in_hand < 200, "the rest waits for the client to read"
        raw.writer.transport.abort()
    await until(lambda: state(supervisor) == (200 - in_hand, 0, in_hand))


async def test_a_client_that_unsubscribes_gives_back_what_it_has_not_begun(supervisor: Supervisor) -> None:
    async with Raw(supervisor.socket) as leaving:
        member = await leaving.call("subscribe", pattern=JOBS, queue="workers", starts=True, maxInFlight=3)
        await publish(supervisor, 1, 2, 3)
        first, second, _ = [await given(leaving) for _ in range(3)]
        await leaving.call("start", deliveryId=first[0])
        await leaving.call("unsubscribe", subscriptionId=member["subscriptionId"])
        await until(lambda: state(supervisor) == (2, 1, 0))
        assert await leaving.refusal("start", deliveryId=second[0]) == ("NotFound", "not_found")
        assert await leaving.refusal("ack", deliveryId=second[0]) == ("NotFound", "not_found")
        await leaving.call("ack", deliveryId=first[0])
        await until(lambda: state(supervisor) == (2, 0, 0))


async def test_a_start_as_a_notification_counts_as_well_and_so_does_an_answer_without_one(
    supervisor: Supervisor,
) -> None:
    async with a_member(supervisor, maxInFlight=2) as member:
        await publish(supervisor, 1, 2)
        first, second = await given(member), await given(member)
        member.send(request("start", {"deliveryId": first[0]}))
        await member.call("start", deliveryId=first[0])  # saying so twice changes nothing
        await member.call("ack", deliveryId=second[0])
        await until(lambda: state(supervisor) == (0, 1, 0))
        await member.call("fail", deliveryId=first[0], reason="no")
    await until(lambda: state(supervisor) == (0, 0, 1))


async def test_what_is_not_begun_in_time_is_offered_to_another(data_dir: Path) -> None:
    async with a_supervisor(data_dir, IMPATIENT) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        async with a_member(supervisor) as idle, a_member(supervisor) as other:
            await publish(supervisor, 1)
            delivery, payload = await given(idle)
            again, same = await given(other)
            assert (payload, same) == (1, 1)
            await other.call("start", deliveryId=again)
            assert await idle.refusal("start", deliveryId=delivery) == ("NotFound", "not_found")
            await other.call("ack", deliveryId=again)
            await until(lambda: state(supervisor) == (0, 0, 0))


async def test_the_handler_timeout_counts_from_the_start(data_dir: Path) -> None:
    async with a_supervisor(data_dir, IMPATIENT) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        async with a_member(supervisor) as member:
            await publish(supervisor, 1)
            delivery, _ = await given(member)
            await member.call("start", deliveryId=delivery)
            await until(lambda: state(supervisor) == (0, 0, 1))
            (letter,) = await supervisor.context.relay.dead_letters()
            assert (letter.code, letter.reason) == (Code.TIMEOUT, "socket client: no answer within 0.1 s")


@pytest.mark.parametrize("begun", [False, True], ids=["stopped", "hanging"])
async def test_a_member_that_says_nothing_in_time_is_given_nothing_more_until_it_does(
    data_dir: Path, begun: bool
) -> None:
    async with a_supervisor(data_dir, IMPATIENT) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        async with a_member(supervisor) as silent:
            await publish(supervisor, "first", *range(20))
            delivery, payload = await given(silent)
            assert payload == "first"
            if begun:
                await silent.call("start", deliveryId=delivery)
            await until(lambda: state(supervisor) == (20, 0, 1) if begun else state(supervisor) == (21, 0, 0))
            async with a_client(supervisor) as client, client.subscribe(JOBS, queue="workers") as messages:
                expected = [*range(20)] if begun else ["first", *range(20)]
                assert [(await anext(messages)).payload for _ in expected] == expected
            await publish(supervisor, "last")
            await silent.call("server.ping")
            assert not silent.notes
            word = "ack" if begun else "start"
            assert await silent.refusal(word, deliveryId=delivery) == ("NotFound", "not_found")
            assert (await given(silent))[1] == "last"


async def test_what_is_not_begun_in_time_goes_back_in_order(data_dir: Path) -> None:
    async with a_supervisor(data_dir, IMPATIENT) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        async with a_member(supervisor, maxInFlight=4) as silent:
            await publish(supervisor, *range(6))
            for _ in range(4):
                await given(silent)
            await until(lambda: state(supervisor) == (6, 0, 0))
            async with a_client(supervisor) as client, client.subscribe(JOBS, queue="workers") as messages:
                assert [(await anext(messages)).payload for _ in range(6)] == [*range(6)]


async def test_a_member_that_does_not_read_has_all_its_room_when_it_does(data_dir: Path) -> None:
    config = {**UNLIMITED, "dispatch": {"handlerTimeoutMs": 500}}
    async with a_supervisor(data_dir, config) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        async with a_member(supervisor, maxInFlight=40) as member:
            member.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await publish(supervisor, *([number, "x" * 100_000] for number in range(40)))
            await until(lambda: state(supervisor) == (0, 40, 0))
            await until(lambda: state(supervisor) == (40, 0, 0))  # some were sent, and the rest could not be
            member.writer.transport.resume_reading()  # type: ignore[attr-defined]
            begun: set[int] = set()
            while len(begun) < 40:  # all of them at the same time: nothing is answered
                delivery, (number, _) = await given(member)
                if "result" in await member.answer(member.ask("start", deliveryId=delivery)):
                    begun.add(number)


async def test_what_neither_of_two_pools_had_begun_goes_back_in_line(supervisor: Supervisor) -> None:
    async with a_member(supervisor, queue="one") as one, a_member(supervisor, queue="two") as two:
        await publish(supervisor, 1)
        for member in (one, two):
            await given(member)
            await member.close()
    await until(lambda: state(supervisor)[1] == 0)
    assert state(supervisor) == (1, 0, 0)


async def test_a_subscription_for_itself_may_promise_that_too(supervisor: Supervisor) -> None:
    async with a_member(supervisor, queue=None) as member:
        await publish(supervisor, 1)
        await given(member)
        await member.close()
    await until(lambda: state(supervisor) == (1, 0, 0))


async def test_a_stop_of_the_supervisor_puts_back_what_was_not_begun(data_dir: Path) -> None:
    async with a_supervisor(data_dir) as supervisor:
        await supervisor.context.relay.register_endpoint(JOBS)
        member = await Raw(supervisor.socket).__aenter__()
        await member.call("subscribe", pattern=JOBS, queue="workers", starts=True, maxInFlight=2)
        await publish(supervisor, 1, 2)
        for _ in range(2):
            await given(member)
    await member.close()
    async with a_supervisor(data_dir) as supervisor:
        assert state(supervisor) == (2, 0, 0)


# The client


async def test_clients_share_the_messages_of_a_queue(supervisor: Supervisor) -> None:
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(3):
            client = await stack.enter_async_context(a_client(supervisor))
            streams.append(await stack.enter_async_context(client.subscribe(JOBS, queue="workers")))
        await publish(supervisor, 0, 1, 2, 3)
        begun = [(await anext(stream)).payload for stream in streams]
        assert sorted(begun) == [0, 1, 2], "all three work at the same time"
        assert state(supervisor) == (1, 3, 0)
        assert (await anext(streams[1])).payload == 3, "the one that is free has the next"
    await until(lambda: state(supervisor) == (0, 0, 0))


async def test_what_the_body_sees_has_been_begun(supervisor: Supervisor) -> None:
    async with (
        a_wire(supervisor.socket) as (path, wire),
        RelayClient(path, timeout=20) as client,
        client.subscribe(JOBS, queue="workers", max_in_flight=3) as messages,
    ):
        await publish(supervisor, 1, 2, 3)
        assert (await anext(messages)).payload == 1
        await until(lambda: state(supervisor) == (0, 3, 0))
        wire.cut()
        assert (await anext(messages)).payload == 2, "the connection is made again, and what was begun is parked"
        assert await codes(supervisor) == [Code.DISCONNECTED]
        assert (await anext(messages)).payload == 3
    await until(lambda: state(supervisor) == (0, 0, 1))


async def test_a_stream_that_is_closed_gives_back_what_its_body_has_not_seen(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client:
        async with client.subscribe(JOBS, queue="workers", max_in_flight=3) as messages:
            await publish(supervisor, 1, 2, 3)
            assert (await anext(messages)).payload == 1
            await until(lambda: state(supervisor) == (0, 3, 0))
        await until(lambda: state(supervisor) == (2, 0, 0))
        async with client.subscribe(JOBS, queue="workers") as messages:
            assert [(await anext(messages)).payload for _ in range(2)] == [2, 3]


async def test_a_step_that_is_cancelled_while_it_asks_loses_nothing(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client, client.subscribe(JOBS, queue="workers") as messages:
        await publish(supervisor, 1, 2)
        await until(lambda: messages._notes)
        async with asyncio.TaskGroup() as group:
            step = group.create_task(messages.__anext__())
            await asyncio.sleep(0)
            assert messages._pending_start is not None
            step.cancel()
        assert (await anext(messages)).payload == 1
        assert (await anext(messages)).payload == 2
    await until(lambda: state(supervisor) == (0, 0, 0))


async def test_a_stream_that_is_closed_while_it_asks_gives_that_message_back(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client:
        async with client.subscribe(JOBS, queue="workers") as messages:
            await publish(supervisor, 1)
            await until(lambda: messages._notes)
            async with asyncio.TaskGroup() as group:
                step = group.create_task(messages.__anext__())
                await asyncio.sleep(0)
                assert messages._pending_start is not None
                step.cancel()
        await until(lambda: state(supervisor)[1] == 0)
        assert state(supervisor) == (1, 0, 0)
        async with client.subscribe(JOBS, queue="workers") as messages:
            assert (await anext(messages)).payload == 1


async def test_a_bad_queue_is_refused_as_in_process(supervisor: Supervisor) -> None:
    async with a_client(supervisor) as client:
        with pytest.raises(InvalidSubject, match="a queue name consists of") as raised:
            await client.subscribe(JOBS, queue="no spaces")
        assert raised.value.code == "invalid_queue"
        with pytest.raises(ProtocolError, match="queue"):
            await client.call("subscribe", {"pattern": JOBS, "queue": 7})


# Processes


WORKER = """
    import asyncio, sys
    from pathlib import Path
    from relay_core.client.client import RelayClient

    async def main(socket, journal):
        async with RelayClient(Path(socket)) as client, client.subscribe(
            "relay.job.build", queue="workers", max_in_flight=3
        ) as jobs:
            print("ready", flush=True)
            async for job in jobs:
                with open(journal, "a") as file:
                    file.write(f"{job.payload}\\n")
                print(job.payload, flush=True)
                if job.payload == "hang":
                    await asyncio.Event().wait()

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_worker_killed_mid_work_costs_the_message_it_had_begun_and_no_other(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, UNLIMITED) as daemon, daemon.client() as client:
        await client.register_endpoint(JOBS)
        workers = []
        for number in range(3):
            journal = tmp_path / f"worker-{number}"
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", textwrap.dedent(WORKER), str(daemon.socket), str(journal)),
                stdout=asyncio.subprocess.PIPE,
            )
            assert worker.stdout is not None
            assert await asyncio.wait_for(worker.stdout.readline(), 60) == b"ready\n"
            workers.append(worker)
        try:
            await client.publish(JOBS, "hang", sender=SENDER)
            victim = workers[0]
            assert victim.stdout is not None
            assert await asyncio.wait_for(victim.stdout.readline(), 60) == b"hang\n"
            # At once: one by one, the idle workers could take each before the next, and the hanging one never any.
            await client.publish_many({"subject": JOBS, "payload": number, "sender": SENDER} for number in range(60))
            await until(lambda: _claimed_by_the_hanging(client))
            victim.send_signal(signal.SIGKILL)
            await until(lambda: _is_done(client))
            done = [(tmp_path / f"worker-{number}").read_text().split() for number in range(3)]
            assert done[0] == ["hang"], "what it had been sent and not begun, others have done"
            assert sorted(int(number) for number in done[1] + done[2]) == list(range(60))
            assert all(done[1:]), "both have worked"
            (letter,) = await client.dead_letters()
            assert letter.envelope is not None
            assert (letter.envelope.payload, letter.code) == ("hang", Code.DISCONNECTED)
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.kill()
                await worker.wait()


async def _claimed_by_the_hanging(client: RelayClient) -> bool:
    """Return True if only the messages sent to the hanging worker are left."""
    (box,) = [box for box in await client.mailboxes() if box.subject == JOBS]
    return (box.depth, box.claimed) == (0, 3)


async def _is_done(client: RelayClient) -> bool:
    (box,) = [box for box in await client.mailboxes() if box.subject == JOBS]
    return (box.depth, box.claimed) == (0, 0)


async def test_a_supervisor_killed_with_messages_in_several_hands_parks_them_all(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, OS) as daemon, daemon.client() as one, daemon.client() as two:
        await one.register_endpoint(JOBS)
        streams = [client.subscribe(JOBS, queue="workers") for client in (one, two)]
        for stream in streams:
            await stream
        for number in range(4):
            await one.publish(JOBS, number, sender=SENDER)
        assert sorted([(await anext(stream)).payload for stream in streams]) == [0, 1]
        await daemon.kill()
        await daemon.start()
        seen = [(await anext(streams[0])).payload for _ in range(2)]
        assert seen == [2, 3], "the other has not come back yet"
        assert [letter.code for letter in await one.dead_letters()] == [Code.INTERRUPTED] * 2


async def test_relay_subscribe_shares_a_queue(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, OS) as daemon, daemon.client() as client:
        await client.register_endpoint(JOBS)
        commands = []
        for _ in range(2):
            commands.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "relay_supervisor.cli", "subscribe", JOBS, "--queue", "workers"),
                    *("--socket", str(daemon.socket)),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
            )
        try:
            for command in commands:
                assert command.stderr is not None
                assert b"listening" in await asyncio.wait_for(command.stderr.readline(), 60)
            for number in range(10):
                await client.publish(JOBS, number, sender=SENDER)
            await until(lambda: _is_done(client))
            printed = []
            for command in commands:
                command.send_signal(signal.SIGINT)
                out, _ = await asyncio.wait_for(command.communicate(), 60)
                assert command.returncode == 0
                printed.append([json.loads(line)["payload"] for line in out.splitlines()])
        finally:
            for command in commands:
                if command.returncode is None:
                    command.kill()
                    await command.wait()
        assert sorted(printed[0] + printed[1]) == list(range(10))
        assert all(printed)
        assert await client.dead_letters() == []

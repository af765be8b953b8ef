"""Closing waits for running handlers, `idle` for all of them, and a restart accounts for every claimed message."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay_core import Envelope, RelayCore
from relay_core.messages.subjects import subject_hash
from tests.kit import ROOT
from tests.kit.bus import SENDER, A, B, C, assert_counts_match_files, config, files, publish_all, span
from tests.kit.handlers import Listener
from tests.kit.waiting import PATIENCE_SECS, until

# Restart


VICTIM = """
    import asyncio, sys
    from relay_core import RelayConfig, RelayCore

    async def main():
        async with RelayCore(sys.argv[1], RelayConfig(durability=sys.argv[2])) as relay:
            async def hang(envelope):
                print(envelope.id, flush=True)
                await asyncio.Event().wait()
            await relay.register_endpoint("relay.agent.a")
            for number in range(3):
                await relay.publish("relay.agent.a", number, sender="relay.agent.sender")
            if sys.argv[3] == "files":
                await relay.idle()
            await relay.subscribe("relay.agent.a", hang)
            await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.mark.parametrize("resting", ["pending", "files"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_a_restart_dead_letters_messages_in_flight_and_leaves_the_rest_alone(
    data_dir: Path, durability: str, resting: str
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(VICTIM),
        str(data_dir),
        durability,
        resting,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert child.stdout is not None
    handled = (await asyncio.wait_for(child.stdout.readline(), PATIENCE_SECS)).decode().strip()
    child.send_signal(signal.SIGKILL)
    await child.wait()
    box = data_dir / "mailboxes" / subject_hash(A)
    waiting = files(data_dir, A, "new")
    before = {name: (box / "new" / f"{name}.json").stat().st_ino for name in waiting}
    if resting == "files":
        assert (files(data_dir, A, "cur"), len(waiting)) == ([handled], 2)
    (box / "tmp" / "leftover.json").write_bytes(b"half a mess")
    async with RelayCore(data_dir, config(durability)) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.message_id, letter.code) == (handled, "interrupted")
        assert letter.envelope is not None
        assert letter.envelope.payload == 0
        after = {name: (box / "new" / f"{name}.json").stat().st_ino for name in files(data_dir, A, "new")}
        assert len(after) == 2
        assert after | before == after  # a message that is a file already is not written again
        assert files(data_dir, A, "tmp") == []
        listener = Listener()
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == [1, 2]
        assert_counts_match_files(relay, data_dir)


# Closing


async def test_closing_waits_for_the_message_under_way_and_begins_no_other(data_dir: Path) -> None:
    listener = Listener(held=True)
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        await publish_all(relay, A, [1, 2])
        await listener.entered.wait()
        asyncio.get_running_loop().call_later(0.05, listener.gate.set)
    assert (listener.got, listener.running) == ([1], 0)
    async with RelayCore(data_dir, config()) as relay:
        assert await relay.dead_letters() == []
        assert [envelope.payload for envelope in await relay.inbox(A)] == [2]


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_closing_parks_a_message_whose_handler_does_not_end(
    data_dir: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 0.05)
    listener = Listener(held=True)
    async with RelayCore(data_dir, config(durability)) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, listener)
        first, second = await publish_all(relay, A, [1, 2])
        await listener.entered.wait()
    assert listener.running == 0  # it was cancelled
    assert (files(data_dir, A, "cur"), files(data_dir, A, "failed"), files(data_dir, A, "new")) == (
        [],
        [first],
        [second],
    )
    async with RelayCore(data_dir, config(durability)) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.code, letter.reason) == ("interrupted", "the bus was closed meanwhile")
        found = await span(relay, first)
        assert (found.status, found.code) == ("failed", "interrupted")


async def test_closing_waits_for_blocking_handlers_that_wait_for_a_thread(data_dir: Path) -> None:
    release, got = threading.Event(), []

    def block(envelope: Envelope) -> None:
        assert release.wait(PATIENCE_SECS)
        got.append(envelope.payload)

    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe("relay.many.*", block)
        for number in range(80):  # more than there are threads
            await relay.publish(f"relay.many.n{number}", number, sender=SENDER)
        await until(lambda: sum(state.claimed for state in relay.mailboxes()) == 80)
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert sorted(got) == list(range(80))
    assert list((data_dir / "mailboxes").glob("*/*/*.json")) == []


# Idle


async def test_idle_returns_at_once_if_no_consumer_has_work(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    await publish_all(relay, A, [1])  # it has no consumer
    async with asyncio.timeout(PATIENCE_SECS):
        await relay.idle()
    assert relay.mailboxes()[0].depth == 1


async def test_idle_waits_for_every_mailbox_and_for_what_handlers_publish(relay: RelayCore) -> None:
    last = Listener()

    def forward(to: str) -> Callable[[Envelope], Any]:
        async def handler(envelope: Envelope) -> None:
            await asyncio.sleep(0)
            await relay.publish(to, envelope.payload, sender=envelope.subject)

        return handler

    for subject, handler in ((A, forward(B)), (B, forward(C)), (C, last)):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, handler)
    await publish_all(relay, A, list(range(20)))
    await relay.idle()
    assert last.got == list(range(20))


async def test_several_may_wait_for_idle_and_none_returns_early(relay: RelayCore) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await publish_all(relay, A, [1, 2])
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(relay.idle()) for _ in range(3)]
        await listener.entered.wait()
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        listener.gate.set()
    assert listener.got == [1, 2]


async def test_idle_does_not_return_when_work_has_begun_again_meanwhile(relay: RelayCore) -> None:
    finished, listener = asyncio.Event(), Listener()

    async def handle(envelope: Envelope) -> None:
        await listener(envelope)
        if envelope.payload == 1:
            finished.set()  # who waits for this has its turn before who waits for idle

    async def publish_more() -> None:
        await finished.wait()
        await relay.publish(A, 2, sender=SENDER)

    await relay.register_endpoint(A)
    await relay.subscribe(A, handle)
    async with asyncio.TaskGroup() as group:
        group.create_task(publish_more())
        await asyncio.sleep(0)
        await relay.publish(A, 1, sender=SENDER)
        await relay.idle()
        assert listener.got == [1, 2]

"""A daemon that is stopped for a while, and a clock that jumps: everything goes on where it was."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relay_core import SupervisorUnavailable
from relay_core.client.client import RelayClient
from relay_core.messages.dead_letter import Code
from relay_core.messages.subjects import subject_hash
from relay_core.records.events import EventKind
from relay_core.testing import FakeClock
from relay_supervisor.supervisor import Supervisor
from tests.kit import ROOT
from tests.kit.bus import A
from tests.kit.daemon import UNLIMITED, a_daemon
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until

S = "relay.agent.s"
HOUR, DAY = 3600.0, 86_400.0
_LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")
QUEUED = int(_LIMIT.read_text()) if _LIMIT.exists() else 0
"""Events that the kernel keeps for a watcher; more are an overflow."""


async def drop(count: int, *directories: Path) -> None:
    """Have another process drop messages into mailboxes."""
    command = [sys.executable, "-m", "tests.supervisor.crash.drop", str(count), *map(str, directories)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == 0


@pytest.mark.slow
@pytest.mark.skipif(not 0 < QUEUED <= 50_000, reason="the watcher's queue is too long")
async def test_a_daemon_that_was_stopped_takes_up_everything_that_came_meanwhile(tmp_path: Path) -> None:
    dropped = QUEUED + 3616  # 20,000 with Linux's own limit
    boxes = [f"relay.box.{number}" for number in range(10)]
    async with a_daemon(tmp_path, UNLIMITED) as daemon, daemon.client() as client, daemon.client() as consumer:
        for subject in boxes:
            await client.register_endpoint(subject)
        seen: list[int] = []

        async def consume() -> None:
            async with consumer.subscribe(boxes[0]) as messages:
                async for envelope in messages:
                    seen.append(envelope.payload["n"])

        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consume())
            await client.publish(boxes[0], {"n": -1}, sender=S)
            await until(lambda: seen == [-1])
            daemon.send(signal.SIGSTOP)
            asked = [group.create_task(client.status()) for _ in range(3)]
            published = [
                group.create_task(client.publish(boxes[number % 10], {"n": dropped + number}, sender=S))
                for number in range(500)
            ]
            await drop(dropped, *(daemon.data_dir / "mailboxes" / subject_hash(subject) / "new" for subject in boxes))
            assert not any(task.done() for task in (*asked, *published))
            daemon.send(signal.SIGCONT)
            for status in asked:
                assert (await status).server.pid == daemon.pid
            for result in published:
                assert (await result).delivered_to == 1
            expected = {-1, *(number for number in range(dropped + 500) if number % 10 == 0)}
            await until(lambda: len(seen) >= len(expected))
            now = await client.status()
            while now.waiting < (dropped + 500) * 9 // 10:
                now = await client.status()
            consuming.cancel()
        assert sorted(seen) == sorted(expected)
        assert now.waiting == (dropped + 500) * 9 // 10
        assert now.dead_letters == []
        assert not any(job.running or job.last for job in now.jobs)
        assert await daemon.stop() == 0
        assert len(list(daemon.data_dir.glob("mailboxes/*/new/*.json"))) == now.waiting


async def test_a_stopped_daemon_is_waited_for_as_long_as_the_timeout_says(tmp_path: Path) -> None:
    async with a_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.register_endpoint(A)
        daemon.send(signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(client.publish(A, 1, sender=S))
            with pytest.raises(SupervisorUnavailable, match=r"no answer to server\.ping"):
                await client.call("server.ping", timeout=0.05)
            with pytest.raises(SupervisorUnavailable, match=r"no answer to server\.hello"):
                await daemon.client(timeout=0.05).__aenter__()
            assert not publishing.done()
            daemon.send(signal.SIGCONT)
        assert publishing.result().delivered_to == 1
        assert len(await client.inbox(A)) == 1


JUMPS = pytest.mark.parametrize("jump", [-HOUR, DAY], ids=["an-hour-back", "a-day-on"])
LONG_LIVED: dict[str, Any] = {**UNLIMITED, "budget": {"ttlMs": int(30 * DAY * 1000)}}


def jobs_run(supervisor: Supervisor) -> int:
    events = supervisor.context.relay.events
    return sum(row["kind"] == EventKind.JOB for row in events.recent)


async def payloads(client: RelayClient) -> list[object]:
    return [message.payload for message in await client.inbox(A, limit=1000)]


@JUMPS
async def test_a_jump_loses_no_message_and_ids_keep_rising(data_dir: Path, clock: FakeClock, jump: float) -> None:
    async with a_supervisor(data_dir, LONG_LIVED, clock) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        ids = []
        for number in range(30):
            if number in (10, 20):
                clock.jump_wall(jump)
            ids.append((await client.publish(A, number, sender=S, dedupe_id=f"{number}")).message_id)
            again = await client.publish(A, number, sender=S, dedupe_id=f"{number}")
            assert again.message_id == ids[-1]
        assert ids == sorted(ids)
        assert await payloads(client) == list(range(30))
        taken = await client.claim(A, 30)
        assert [message.payload for message in taken] == list(range(30))
        for message in taken:
            await client.complete(A, message.id)
        assert await client.dead_letters() == []


@JUMPS
async def test_a_jump_ends_no_lease(data_dir: Path, clock: FakeClock, jump: float) -> None:
    async with a_supervisor(data_dir, LONG_LIVED, clock) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        await client.publish(A, 1, sender=S)
        await client.publish(A, 2, sender=S)
        first, second = await client.claim(A, 2, lease=timedelta(seconds=60))
        clock.jump_wall(jump)
        clock.advance(59)
        await client.complete(A, first.id)
        clock.advance(2)
        letters = await client.dead_letters()
        while not letters:
            letters = await client.dead_letters()
        assert [(letter.message_id, letter.code) for letter in letters] == [(second.id, Code.TIMEOUT)]


@JUMPS
async def test_a_jump_lets_no_probe_through_a_breaker(data_dir: Path, clock: FakeClock, jump: float) -> None:
    config = {**LONG_LIVED, "reliability": {"circuitBreaker": {"failureThreshold": 1, "cooldownMs": 30_000}}}
    async with a_supervisor(data_dir, config, clock) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(A)
        for payload in ("fails", "waits"):
            await client.publish(A, payload, sender=S)
        async with client.subscribe(A) as messages:
            await anext(messages)
            messages.fail("as arranged")
            breakers = supervisor.context.relay.breakers
            await until(lambda: [breaker.state.value for breaker in breakers()] == ["OPEN"])
            clock.jump_wall(jump)
            clock.advance(29)
            await client.call("server.ping")
            assert await payloads(client) == ["waits"]
            assert [breaker.state.value for breaker in breakers()] == ["OPEN"]
            clock.advance(2)
            assert (await anext(messages)).payload == "waits"


@JUMPS
async def test_a_jump_starts_no_burst_of_jobs(data_dir: Path, clock: FakeClock, jump: float) -> None:
    async with a_supervisor(data_dir, LONG_LIVED, clock) as supervisor, a_client(supervisor) as client:
        for _ in range(5):
            clock.jump_wall(jump)
            clock.advance(120)  # it looks at the clock each minute
            await client.call("server.ping")
        assert jobs_run(supervisor) == 0
        run = await client.run_job("expire")
        assert run.outcome == "ok"
        assert jobs_run(supervisor) == 2
        assert not any(job.running for job in await client.jobs())


@JUMPS
async def test_a_jump_stops_no_stream_of_state(data_dir: Path, clock: FakeClock, jump: float) -> None:
    async with (
        a_supervisor(data_dir, LONG_LIVED, clock) as supervisor,
        a_client(supervisor) as client,
        client.watch() as watch,
    ):
        state = await anext(watch)
        clock.jump_wall(jump)
        await client.register_endpoint(A)
        clock.advance(1)
        while not state.mailboxes:
            await anext(watch)
        assert state.at == clock.now_ms()

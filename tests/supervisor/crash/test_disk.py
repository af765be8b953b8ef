"""A full disk, for real, seen through the socket: publishing is refused, all else works, and it heals by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay_core import DeadLetter, PublishResult, StorageError
from relay_core.client.client import RelayClient
from relay_core.messages.envelope import decode_envelope
from relay_core.testing import FakeClock
from tests.core.crash.small_disk import Disk
from tests.core.crash.test_disk_full import disk
from tests.kit.bus import A, B
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.raw_client import Raw
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until

__all__ = ["disk"]


@pytest.fixture(params=["os", pytest.param("fsync", marks=pytest.mark.slow)])
def durability(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def daemon(disk: Disk, tmp_path: Path, durability: str) -> AsyncIterator[Daemon]:
    async with a_daemon(disk.root, {**UNLIMITED, "durability": durability}, started=False) as found:
        disk.data_dir = found.data_dir
        found.log = tmp_path / "daemon.log"
        await found.start()
        yield found


async def publish_until_full(client: RelayClient, first: int = 0) -> tuple[set[int], int]:
    """Publish until the disk refuses; return the numbers that were answered, and the one that was not."""
    answered: set[int] = set()
    for number in range(first, 100_000):
        try:
            await client.publish(A, {"n": number, "x": "x" * 2000}, sender=B, dedupe_id=f"{number}")
        except StorageError as error:
            if (error.code, error.retryable) != ("storage_full", True):
                raise
            return answered, number
        answered.add(number)
    raise AssertionError("the disk never filled up")


def numbers(disk: Disk) -> list[int]:
    return sorted(decode_envelope(path.read_bytes()).payload["n"] for path in disk.files("new"))


async def test_publishing_is_refused_and_everything_else_works(disk: Disk, daemon: Daemon) -> None:
    async with daemon.client() as client:
        await client.register_endpoint(A)
        await asyncio.to_thread(disk.fill)
        answered, _ = await publish_until_full(client)
        await asyncio.to_thread(disk.fill)
        for _ in range(5):
            with pytest.raises(StorageError, match="free some space"):
                await client.publish(A, {"n": -1, "x": "x" * 9000}, sender=B)
        (one, other) = await client.publish_many(
            [{"subject": A, "payload": {"n": -1, "x": "x" * 9000}, "sender": B} for _ in range(2)]
        )
        assert isinstance(one, StorageError)
        assert isinstance(other, StorageError)
        assert numbers(disk) == sorted(answered)
        assert disk.files("tmp") == []
        assert len(await client.inbox(A, limit=1000)) == min(len(answered), 1000)
        status = await client.status()
        assert (status.endpoints, status.waiting) == (1, len(answered))
        (box,) = await client.mailboxes()
        assert box.degraded
        async with daemon.client() as another:
            assert (await another.info()).pid == daemon.pid
        assert await daemon.stop() == 0
    disk.free()
    assert numbers(disk) == sorted(answered)


async def test_it_heals_by_itself_and_a_retry_publishes_once(disk: Disk, daemon: Daemon) -> None:
    async with daemon.client() as client:
        await client.register_endpoint(A)
        await asyncio.to_thread(disk.fill)
        answered, refused = await publish_until_full(client)
        disk.free()
        for number in {*answered, refused}:
            result = await client.publish(A, {"n": number}, sender=B, dedupe_id=f"{number}")
            assert isinstance(result, PublishResult)
        await until(lambda: numbers(disk) == sorted({*answered, refused}))
        (box,) = await client.mailboxes()
        assert box.degraded is None
        assert (await client.status()).waiting == len(answered) + 1


async def test_consumers_go_on_and_a_kill_loses_nothing(disk: Disk, daemon: Daemon) -> None:
    async with daemon.client() as client:
        await client.register_endpoint(A)
        for number in range(40):
            await client.publish(A, {"n": number, "x": "x" * 2000}, sender=B)
        await asyncio.to_thread(disk.fill)
        more, _ = await publish_until_full(client, first=1000)
        await asyncio.to_thread(disk.fill)
        seen = []
        async with client.subscribe(A) as messages:
            async for envelope in messages:
                seen.append(envelope.payload["n"])
                if len(seen) == 20:
                    break
        await daemon.kill()
        disk.free()
        await daemon.start()
        letters: list[DeadLetter] = await client.dead_letters()
        parked = {letter.envelope.payload["n"] for letter in letters if letter.envelope}
        waiting = {message.payload["n"] for message in await client.inbox(A, limit=1000)}
        assert len(set(seen)) == len(seen)
        assert waiting & set(seen) == set()
        assert {*seen, *parked, *waiting} == {*range(40), *more}


@pytest.mark.parametrize("how", ["fail", "disconnect", "lease", "claim and disconnect"])
@pytest.mark.parametrize("promise", ["os", "fsync"])
async def test_what_ends_on_a_full_disk_is_parked_once_there_is_space(
    disk: Disk, clock: FakeClock, promise: str, how: str
) -> None:
    disk.data_dir.mkdir(mode=0o700)
    async with a_supervisor(disk.data_dir, {**UNLIMITED, "durability": promise}, clock) as supervisor:
        relay = supervisor.context.relay
        await relay.register_endpoint(A)
        await relay.publish(A, {"x": "x" * 100_000}, sender=B)
        await asyncio.to_thread(disk.fill)
        async with Raw(supervisor.socket) as raw:
            if how in ("fail", "disconnect"):
                await raw.call("subscribe", pattern=A)
                delivery_id = (await raw.note())["deliveryId"]
                if how == "fail":
                    assert await raw.call("fail", deliveryId=delivery_id, reason="no") == {}
            else:
                lease = {"leaseMs": 5000} if how == "lease" else {}
                assert len((await raw.call("inbox.claim", subject=A, **lease))["messages"]) == 1
        if how == "lease":
            clock.advance(6)
        await until(lambda: relay.mailboxes()[0].claimed == 1 and relay.mailboxes()[0].degraded)
        assert await relay.dead_letters() == []
        disk.free()

        async def is_parked() -> bool:
            clock.advance(1)
            return bool(await relay.dead_letters())

        await until(is_parked)
        (letter,) = await relay.dead_letters()
        assert (letter.code, letter.reason) == {
            "fail": ("consumer_failed", "socket client: no"),
            "disconnect": ("disconnected", "socket client: the consumer has disconnected"),
            "lease": ("timeout", "not completed within 5 s"),
            "claim and disconnect": ("disconnected", "the consumer has disconnected"),
        }[how]
        await until(lambda: relay.mailboxes()[0].degraded is None)
        (box,) = relay.mailboxes()
        assert (box.claimed, box.failed) == (0, 1)

"""The supervisor starts on a full disk, says what it refuses, and a purge gives it room again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relay_core import StorageError
from tests.core.crash.small_disk import Kind, mounted
from tests.supervisor.daemon import UNLIMITED, a_daemon

A, B = "relay.agent.a", "relay.agent.b"


@pytest.mark.parametrize(
    ("kind", "durability", "names"),
    [("tmpfs", "fsync", True), ("ext4-1k", "os", False), ("ext4-1k", "fsync", False)],
    ids=["tmpfs-without-inodes", "ext4-1k-os", "ext4-1k-fsync"],
)
async def test_it_starts_and_a_purge_makes_room(kind: Kind, durability: str, names: bool, tmp_path: Path) -> None:
    with mounted(kind, tmp_path) as disk:
        config = {**UNLIMITED, "durability": durability, "auth": {"requireTokens": True}}
        async with a_daemon(disk.root, config, started=False) as daemon:
            disk.data_dir = daemon.data_dir
            daemon.log = tmp_path / "daemon.log"
            await daemon.start()
            async with daemon.client() as client:
                for number in range(40):  # dead letters, since nobody gets them
                    await client.publish("no.one", {"n": number, "x": "x" * 20_000}, sender=B)
                await client.register_endpoint(A)
            await daemon.kill()
            await asyncio.to_thread(disk.fill)
            if names:
                await asyncio.to_thread(disk.take_names)
            await daemon.start()
            async with daemon.client() as client:
                assert (await client.status()).endpoints == 1
                await asyncio.to_thread(disk.fill)  # the start has given up the journal's old segments
                with pytest.raises(StorageError) as refused:
                    await client.publish(A, {"x": "x" * 100_000}, sender=B, dedupe_id="once")
                assert (refused.value.code, refused.value.retryable) == ("storage_full", True)
                assert (await client.purge_dead_letters()) == 40
                for _ in range(2):
                    result = await client.publish(A, {"x": "x" * 100_000}, sender=B, dedupe_id="once")
                    assert result.delivered_to == 1
                assert len(disk.files("new")) == 1
            await daemon.kill()
            await daemon.start()  # with room, and what was purged stays away
            async with daemon.client() as client:
                assert await client.dead_letters() == []
                assert len(await client.inbox(A)) == 1

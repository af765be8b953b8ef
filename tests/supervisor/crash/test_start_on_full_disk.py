"""The supervisor starts on a full disk, says what it refuses, and a purge gives it room again."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from relay_core import RelayConfig, RelayCore, StorageError
from relay_core.journal.journal import Journal
from relay_core.journal.segment import encode_record
from relay_core.messages.subjects import REPLY_PREFIX, subject_hash
from relay_core.storage.data_dir import DataDir
from tests.core.crash.small_disk import Disk, Kind, mounted
from tests.kit.bus import A, B
from tests.kit.daemon import UNLIMITED, a_daemon
from tests.kit.supervisor import a_supervisor
from tests.kit.waiting import until


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
                for number in range(40):  # dead letters, since they have no consumer
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
                await until(lambda: len(disk.files("new")) == 1)
            await daemon.kill()
            await daemon.start()  # with room, and what was purged stays away
            async with daemon.client() as client:
                assert await client.dead_letters() == []
                assert len(await client.inbox(A)) == 1


async def left_by_a_kill(disk: Disk, tmp_path: Path, messages: int) -> None:
    """Put on the disk what a kill leaves of a bus with some messages: nothing was checkpointed."""
    async with RelayCore(tmp_path / "relay", RelayConfig(durability="fsync")) as relay:
        await relay.register_endpoint(A)
        for number in range(messages):
            await relay.publish(A, {"n": number, "x": "x" * 5_000}, sender=B)
        await relay.idle()  # until they are files
        shutil.copytree(tmp_path / "relay", disk.data_dir)


async def test_a_message_without_room_for_its_file_stays_in_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted("tmpfs", tmp_path) as disk:
        await left_by_a_kill(disk, tmp_path, 3)
        for path in disk.files("new")[1:]:
            path.unlink()  # as after a power loss: the journal alone has them
        disk.fill()
        for _ in range(2):
            async with RelayCore(disk.data_dir, RelayConfig(durability="fsync")) as relay:
                assert [message.payload["n"] for message in await relay.inbox(A)] == [0, 1, 2]  # two from memory
            assert "the disk is full: 2 messages exist only in the journal" in caplog.text
            caplog.clear()
        disk.free()
        async with RelayCore(disk.data_dir, RelayConfig(durability="fsync")) as relay:
            assert [message.payload["n"] for message in await relay.inbox(A)] == [0, 1, 2]


async def test_a_transaction_that_a_kill_cut_short_is_carried_out_once_there_is_room(tmp_path: Path) -> None:
    config = RelayConfig(durability="os")
    with mounted("tmpfs", tmp_path) as disk:
        async with RelayCore(disk.data_dir, config) as relay:
            await relay.register_endpoint(A)
            sent = await relay.publish(A, {"x": "x" * 5_000}, sender=B)
        (path,) = disk.files("new")
        journal = Journal(disk.data_dir / "journal", "os")
        journal.open()
        journal.append(
            [
                encode_record(sent.message_id, [("new", subject_hash(A), sent.message_id, path.read_bytes())]),
            ]
        )
        journal.close()
        path.unlink()
        shutil.rmtree(disk.data_dir / "journal" / "kept")  # the start would give it up for the message
        disk.fill()
        for _ in range(2):
            async with RelayCore(disk.data_dir, config) as relay:
                assert [message.id for message in await relay.inbox(A)] == [sent.message_id]  # from memory
            assert disk.files("new") == []
        disk.free()
        async with RelayCore(disk.data_dir, config) as relay:
            assert [message.id for message in await relay.inbox(A)] == [sent.message_id]


def make_immutable(path: Path) -> None:
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", path], capture_output=True).returncode:
        pytest.skip("this machine makes no file immutable")


async def test_segments_that_cannot_be_removed_do_not_end_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted("ext4-1k", tmp_path) as disk:
        await left_by_a_kill(disk, tmp_path, 1)
        (segment,) = (disk.data_dir / "journal").glob("*.log")
        make_immutable(segment)
        async with RelayCore(disk.data_dir, RelayConfig(durability="fsync")) as relay:
            assert len(await relay.inbox(A)) == 1
        assert "the old segments are kept" in caplog.text
        assert segment.exists()


async def test_a_reply_mailbox_that_cannot_be_unregistered_does_not_end_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = f"{REPLY_PREFIX}{'0' * 32}"
    with mounted("tmpfs", tmp_path) as disk:
        async with RelayCore(disk.data_dir) as relay:
            await relay.register_endpoint(reply)
        for path in (disk.data_dir / "journal").rglob("*.*"):
            path.unlink()  # a start may remove these, and use their names
        disk.fill()
        disk.take_names()
        async with a_supervisor(disk.data_dir) as supervisor:
            assert [endpoint.subject for endpoint in supervisor.context.relay.endpoints()] == [reply]
        assert f"{reply} is still registered" in caplog.text
        disk.free()
        async with a_supervisor(disk.data_dir) as supervisor:
            assert supervisor.context.relay.endpoints() == []


def test_the_lock_is_taken_without_room_for_the_pid(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path) as disk:
        place = DataDir(disk.data_dir)
        place.acquire()
        assert place.holder() == os.getpid()
        place.release()
        os.truncate(place.lock_file, 0)
        disk.fill()
        place.acquire()
        assert place.holder() is None
        with pytest.raises(StorageError, match="in use by process unknown"):
            DataDir(disk.data_dir).acquire()
        place.release()

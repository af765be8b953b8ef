"""The index follows the Maildir: built from nothing or repaired in place, also while the bus goes on."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.config import BackpressureConfig, RateLimitConfig, ReliabilityConfig
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.records.queries import ON_DISK
from relay_core.records.reindex import Reindexer
from relay_core.records.schema import connect, migrate
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B, C
from tests.kit.waiting import tasks_ended

CONFIG = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        rate_limit=RateLimitConfig(enabled=False), backpressure=BackpressureConfig(max_mailbox_size=100_000)
    ),
)
FOREIGN = "01HF7YAT0A8CDKSYBCF7B20000"

Rows = dict[tuple[str, str], dict[str, Any]]

pytestmark = pytest.mark.bus(endpoints=[A, B, C])


@pytest.fixture
async def relay(relay: RelayCore) -> RelayCore:
    """Wait for the check of the index that opening starts."""
    await tasks_ended("check index")
    return relay


def box(data_dir: Path, subject: str) -> Path:
    return data_dir / "mailboxes" / subject_hash(subject)


def read_rows(db: sqlite3.Connection) -> Rows:
    cursor = db.execute("SELECT * FROM deliveries")
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return {(row["message_id"], row["target"]): row for row in found}


async def rows(relay: RelayCore) -> Rows:
    return await relay.bus.index.run(read_rows)


async def reconcile(relay: RelayCore) -> tuple[int, int]:
    done = await relay.bus.index.run(relay.bus.reindexer.reconcile)
    return done["added"], done["ended"]


def told_by_files(found: Rows) -> Rows:
    """Leave out what only an index knows."""
    unknown = {"claimed_ms", "outcomes"}
    return {
        key: {name: value for name, value in row.items() if name not in unknown}
        for key, row in found.items()
        if row["status"] in ON_DISK
    }


async def fill(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    """Make deliveries of every status there is."""

    async def handle(envelope: Envelope) -> None:
        clock.advance(0.25)
        if envelope.payload == "fail":
            raise ValueError("broken")

    async with await relay.subscribe(A, handle), await relay.subscribe(A, handle):
        root = await relay.publish(A, "done", sender=SENDER)
        await relay.publish(A, "fail", sender=SENDER)
        await relay.idle()
    clock.advance(1)
    await relay.publish(A, {"new": 1}, sender=SENDER)
    await relay.publish(B, {"new": [2]}, sender=A, parent_id=root.message_id)
    await relay.publish(C, "cur", sender=A, parent_id=root.message_id)
    await relay.claim(C)
    clock.advance(1)
    await relay.publish("relay.agent.nobody", "no_subscriber", sender=A, parent_id=root.message_id)
    await relay.publish(B, "over", sender=SENDER, budget={"hop_count": 9})
    purged = await relay.publish(C, "purged", sender=SENDER)
    await relay.claim(C)
    await relay.fail(C, purged.message_id, "no")
    await relay.purge_dead_letters(ids=[purged.message_id])
    aside = await relay.publish(C, "aside", sender=SENDER)
    await relay.claim(C)
    mailbox = relay.bus.mailboxes.get(subject_hash(C))
    assert mailbox is not None
    item = mailbox.claimed[aside.message_id]
    await relay.bus.dead_letter_writer.dead_letter(mailbox, item, code="adapter_failed", reason="no", partial=True)
    (box(data_dir, A) / "new" / "stray.txt").write_bytes(b"hello")
    relay.bus.intake.rescan()
    await tasks_ended("rescan")


STATUSES = Counter(new=2, cur=1, done=1, failed=3, no_subscriber=1, purged=1, partial_failure=1)


async def test_a_rebuild_equals_what_was_there(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    await fill(relay, clock, data_dir)
    before = await rows(relay)
    publishes = await relay.bus.index.run(lambda db: db.execute("SELECT * FROM publishes").fetchall())
    assert Counter(row["status"] for row in before.values()) == STATUSES
    inode = os.stat(data_dir / "index.db").st_ino
    await relay.rebuild_index()
    assert os.stat(data_dir / "index.db").st_ino != inode
    for _ in range(2):
        assert await rows(relay) == before
        assert await relay.bus.index.run(lambda db: db.execute("SELECT * FROM publishes").fetchall()) == publishes
        await relay.rebuild_index()
    assert "index.db.new" not in os.listdir(data_dir)


async def test_from_the_files_alone_everything_on_disk_comes_back(
    relay: RelayCore, clock: FakeClock, data_dir: Path, tmp_path: Path
) -> None:
    await fill(relay, clock, data_dir)
    await relay.idle()
    before = await rows(relay)
    db = connect(str(tmp_path / "other.db"))
    migrate(db)
    Reindexer(data_dir / "mailboxes", limit=1 << 21).rebuild(db, None)
    after = read_rows(db)
    db.close()
    assert told_by_files(after) == told_by_files(before)
    assert len(after) == STATUSES.total() - STATUSES["done"] - STATUSES["purged"]


async def test_rows_that_are_behind_or_missing_or_too_many_are_repaired(
    relay: RelayCore, clock: FakeClock, data_dir: Path
) -> None:
    await fill(relay, clock, data_dir)
    before = await rows(relay)
    there = sum(row["status"] in ON_DISK for row in before.values())
    await relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries WHERE status NOT IN ('done', 'purged')"))
    assert await reconcile(relay) == (there, 0)
    after = await rows(relay)
    assert told_by_files(after) == told_by_files(before)
    await relay.bus.index.run(lambda db: db.execute("UPDATE deliveries SET status = 'new' WHERE status = 'failed'"))
    assert await reconcile(relay) == (STATUSES["failed"], 0)
    assert told_by_files(await rows(relay)) == told_by_files(before)
    assert await reconcile(relay) == (0, 0)
    assert await rows(relay) == after


async def test_rows_whose_file_is_gone_get_an_end(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    await fill(relay, clock, data_dir)
    await relay.idle()
    for state in ("new", "cur", "failed"):
        for subject in (A, B, C, "relay.agent.nobody"):
            for path in (box(data_dir, subject) / state).iterdir():
                path.unlink()
    assert await reconcile(relay) == (0, 8)
    assert Counter(row["status"] for row in (await rows(relay)).values()) == {"gone": 3, "done": 1, "purged": 6}
    assert await reconcile(relay) == (0, 0)


async def test_rows_of_a_mailbox_that_was_removed_get_an_end(relay: RelayCore, data_dir: Path) -> None:
    await relay.publish(A, 1, sender=SENDER)
    await relay.publish(B, 1, sender=SENDER)
    await relay.idle()
    shutil.rmtree(box(data_dir, A))
    assert await reconcile(relay) == (0, 1)
    assert sorted(row["status"] for row in (await rows(relay)).values()) == ["gone", "new"]


async def test_a_mailbox_that_does_not_say_whose_it_is_is_left_alone(relay: RelayCore, data_dir: Path) -> None:
    await relay.publish(A, 1, sender=SENDER)
    await relay.bus.index.flush()
    (box(data_dir, A) / "endpoint.json").unlink()
    assert await reconcile(relay) == (0, 0)
    assert [row["status"] for row in (await rows(relay)).values()] == ["new"]


@pytest.mark.parametrize("state", ["new", "cur"])
async def test_files_that_are_no_messages_have_no_rows(state: str, relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    good = (box(data_dir, A) / "new" / f"{result.message_id}.json").read_bytes()
    await relay.claim(A)
    await relay.complete(A, result.message_id)
    folder = box(data_dir, A) / state
    (folder / f"{FOREIGN}.json").write_bytes(good)  # another message's envelope
    (folder / "notes.json").write_bytes(good)
    (folder / "01HF7YAT0A8CDKSYBCF7B20001.json").write_bytes(b"garbage")
    (folder / "01HF7YAT0A8CDKSYBCF7B20002.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "01HF7YAT0A8CDKSYBCF7B20003.json")
    (folder / "01HF7YAT0A8CDKSYBCF7B20004.json").mkdir()
    assert await reconcile(relay) == (0, 0)
    assert [row["status"] for row in (await rows(relay)).values()] == ["done"]  # not resurrected by the stranger


@pytest.mark.parametrize("how", ["garbage", "link", "fifo"])
async def test_a_damaged_record_has_a_row_as_what_it_is_listed(how: str, relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.claim(A)
    await relay.fail(A, result.message_id, "no")
    record = box(data_dir, A) / "failed" / f"{FOREIGN}.json"
    if how == "garbage":
        record.write_bytes(b"garbage")
    elif how == "link":
        record.symlink_to("/etc/passwd")
    else:
        os.mkfifo(record)
    assert await reconcile(relay) == (1, 0)
    page, total, _ = await relay.dead_letter_page()
    assert total == 2
    assert {row.message_id: row.code for row in page} == {result.message_id: "consumer_failed", FOREIGN: "malformed"}
    assert await reconcile(relay) == (0, 0)


def test_without_any_mailbox_there_is_nothing_to_do(tmp_path: Path) -> None:
    db = connect(str(tmp_path / "index.db"))
    migrate(db)
    assert Reindexer(tmp_path / "mailboxes", limit=1000).reconcile(db) == {"added": 0, "ended": 0}
    db.close()


async def test_an_error_in_the_middle_leaves_no_transaction_open(relay: RelayCore, data_dir: Path) -> None:
    await relay.publish(A, 1, sender=SENDER)
    await relay.bus.index.flush()

    def fail(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM deliveries")
        db.execute("CREATE TEMP TRIGGER no BEFORE INSERT ON deliveries BEGIN SELECT raise(ABORT, 'no'); END")
        try:
            relay.bus.reindexer.reconcile(db)
        finally:
            db.execute("DROP TRIGGER no")
            assert not db.in_transaction

    with pytest.raises(sqlite3.Error, match="no"):
        await relay.bus.index.run(fail)
    assert await reconcile(relay) == (1, 0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("job", ["reconcile", "rebuild"])
async def test_while_the_bus_goes_on_no_row_is_lost_or_resurrected(
    job: str, durability: str, data_dir: Path, clock: FakeClock
) -> None:
    config = CONFIG.model_copy(update={"durability": durability})
    async with RelayCore(data_dir, config, clock) as relay:
        for subject in (A, B, C):
            await relay.register_endpoint(subject)
        root = await relay.publish(B, "root", sender=SENDER)
        finished = asyncio.Event()
        rounds = 0

        async def handle(envelope: Envelope) -> None:
            await asyncio.sleep(0)
            if envelope.payload % 10 == 0:
                raise ValueError("broken")

        async def publish(subject: str) -> None:
            for number in range(60):
                await relay.publish(subject, number, sender=B, parent_id=root.message_id)

        async def pull() -> None:
            """Claim, complete and fail by hand, so that rows are read back from disk."""
            for _ in range(30):
                for message in await relay.claim(C, limit=2):
                    if message.payload % 2:
                        await relay.complete(C, message.id)
                    else:
                        await relay.fail(C, message.id, "no")
                await asyncio.sleep(0)

        async def repair() -> None:
            nonlocal rounds
            while not finished.is_set() or rounds < 3:
                await (reconcile(relay) if job == "reconcile" else relay.rebuild_index())
                rounds += 1

        async def traffic() -> None:
            async with asyncio.TaskGroup() as group:
                for work in (publish(A), publish(C), pull()):
                    group.create_task(work)
            await relay.idle()
            finished.set()

        await relay.subscribe(A, handle)
        async with asyncio.TaskGroup() as group:
            group.create_task(traffic())
            group.create_task(repair())
        found = await rows(relay)
        assert rounds >= 3
    told = {
        state: {(path.stem, path.parent.parent.name) for path in (data_dir / "mailboxes").glob(f"*/{state}/*.json")}
        for state in ("new", "cur", "failed")
    }
    assert {key for key, row in found.items() if row["status"] == "new"} == told["new"]
    assert {key for key, row in found.items() if row["status"] == "failed"} == told["failed"]
    assert told["cur"] == set()
    statuses = Counter(row["status"] for row in found.values())
    assert statuses == {
        "new": len(told["new"]),
        "failed": len(told["failed"]),
        "done": 121 - len(told["new"]) - len(told["failed"]),
    }
    del found[root.message_id, subject_hash(B)]
    for row in found.values():
        assert (row["trace_id"], row["parent_id"]) == (root.message_id, root.message_id)
        assert (row["hops_before"], row["hops_after"]) == (1, 2)


async def test_a_hundred_boxes_are_each_put_right(relay: RelayCore, data_dir: Path) -> None:
    for number in range(100):
        await relay.register_endpoint(f"relay.many.x{number}")
        await relay.publish(f"relay.many.x{number}", number, sender=SENDER)
    before = await rows(relay)
    await relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries"))
    assert await reconcile(relay) == (100, 0)
    assert await rows(relay) == before


async def test_dropped_files_get_rows_too(relay: RelayCore, data_dir: Path) -> None:
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    dropped = orjson.loads((box(data_dir, A) / "new" / f"{result.message_id}.json").read_bytes())
    dropped["id"] = FOREIGN
    (data_dir / "drop").write_bytes(orjson.dumps(dropped))
    os.rename(data_dir / "drop", box(data_dir, B) / "new" / f"{FOREIGN}.json")
    assert await reconcile(relay) == (1, 0)
    assert [(span.status, span.target_subject) for span in await relay.trace(FOREIGN)] == [("new", B)]

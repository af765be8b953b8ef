"""The index behind the bus: rows in order, in few transactions, through everything that can happen to its file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core import RelayConfig, RelayCore
from relay_core.config import RateLimitConfig, ReliabilityConfig
from relay_core.errors import Closed
from relay_core.messages.delivery import Delivery, Status
from relay_core.messages.envelope import Envelope
from relay_core.messages.ids import UlidFactory
from relay_core.records import index as index_module
from relay_core.records.index import Index
from relay_core.records.queries import ON_DISK
from relay_core.records.reindex import Reindexer
from relay_core.records.rows import PublishRow, write_deliveries
from relay_core.records.schema import MIGRATIONS, connect, migrate
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B
from tests.kit.waiting import PATIENCE_SECS, tasks_ended

T0 = 1_700_000_000_000
NOBODY_UID = 65534
CONFIG = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))

HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    db.execute(statement)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def relay(relay: RelayCore) -> RelayCore:
    """Wait for the check of the index that opening starts."""
    await tasks_ended("check index")
    return relay


@pytest.fixture
async def index(data_dir: Path) -> AsyncIterator[Index]:
    index = Index(data_dir / "index.db", Reindexer(data_dir / "mailboxes", limit=1 << 20).rebuild)
    index.open()
    yield index
    await asyncio.to_thread(index.close)


@contextmanager
def locked(path: Path, *statements: str) -> Iterator[None]:
    """Hold the database from another process."""
    command = [sys.executable, "-c", HOLD, str(path), *(statements or ("BEGIN EXCLUSIVE",))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held\n"
            yield
        finally:
            child.kill()


@asynccontextmanager
async def unwritable(index: Index) -> AsyncIterator[None]:
    """Make an open index refuse every row for a while; another process cannot lock it while it is open."""
    await index.run(lambda db: db.execute("PRAGMA query_only = 1"))
    yield
    await index.run(lambda db: db.execute("PRAGMA query_only = 0"))


def delivery(message_id: str, status: str = Status.NEW, **values: Any) -> Delivery:
    made = Delivery(
        message_id, "0123456789ab", "endpoint", A, A, SENDER, message_id, None, status, T0, T0 + 1000, 0, 10, 1, 9, 5,
        (A,), 10, stored_ms=T0,
    )  # fmt: skip
    return replace(made, **values)


def publish(message_id: str, **values: Any) -> PublishRow:
    return PublishRow(message_id, A, SENDER, None, T0, message_id, None, "accepted", 10, 0, 10)._replace(**values)


def rows(db: sqlite3.Connection) -> dict[tuple[str, str], dict[str, Any]]:
    cursor = db.execute("SELECT * FROM deliveries")
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return {(row["message_id"], row["target"]): row for row in found}


def on_disk(found: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of messages that are files, without what no file tells."""
    unknown = {"claimed_ms", "outcomes"}
    return {
        key: {name: value for name, value in row.items() if name not in unknown}
        for key, row in found.items()
        if row["status"] in ON_DISK
    }


# Rows


async def test_rows_are_written_in_few_transactions_in_their_order(index: Index, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    statements: list[str] = []
    await index.run(lambda db: db.set_trace_callback(lambda sql: statements.append(sql.split()[0])))
    ids = [new_id() for _ in range(2000)]
    for message_id in ids:
        index.note(publish(message_id))
        index.note(delivery(message_id))
    await index.flush()
    assert 1 <= statements.count("BEGIN") == statements.count("COMMIT") <= 20
    assert await index.run(lambda db: len(rows(db))) == 2000
    assert await index.run(lambda db: db.execute("SELECT count(*) FROM publishes").fetchone()) == (2000,)


async def test_rows_are_written_without_being_asked_for(index: Index, data_dir: Path, clock: FakeClock) -> None:
    written = asyncio.Event()
    loop = asyncio.get_running_loop()
    await index.run(lambda db: db.set_trace_callback(lambda sql: loop.call_soon_threadsafe(written.set)))
    index.note(delivery(UlidFactory(clock)()))
    async with asyncio.timeout(PATIENCE_SECS):
        await written.wait()


async def test_a_look_up_sees_what_was_noted_before_it(index: Index, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    for _ in range(100):
        one = delivery(new_id())
        index.note(one)
        assert await index.run(lambda db, one=one: rows(db)[one.message_id, one.target]["status"]) == "new"  # type: ignore[misc]


async def test_the_newest_state_of_a_delivery_wins(index: Index, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    at_once, in_steps = delivery(new_id()), delivery(new_id())
    for status in (Status.NEW, Status.CUR, Status.DONE):
        for one in (at_once, in_steps):
            one.status = status
            index.note(one)
        await index.run(lambda db: None) if status == Status.CUR else None
        at_once.handled_ms = in_steps.handled_ms = T0 + 5
        index.note(at_once)
        index.note(in_steps)
    found = await index.run(rows)
    assert {row["status"] for row in found.values()} == {"done"}
    assert {row["handled_ms"] for row in found.values()} == {T0 + 5}


async def test_a_publish_is_written_once_and_stays_as_it_was(index: Index, clock: FakeClock) -> None:
    message_id = UlidFactory(clock)()
    index.note(publish(message_id, status="no_subscriber"))
    index.note(publish(message_id, status="accepted"))
    await index.flush()
    index.note(publish(message_id, status="failed"))
    assert await index.run(lambda db: db.execute("SELECT status FROM publishes").fetchall()) == [("no_subscriber",)]


KNOWING = delivery("M", trace_id="T", parent_id="P", stored_ms=T0 + 7.5)
STATES = st.sampled_from([Status.NEW, Status.CUR, Status.FAILED, Status.DONE])


@given(st.lists(STATES, max_size=5), st.lists(STATES, max_size=5), st.lists(st.booleans(), min_size=11, max_size=11))
def test_whoever_knows_the_trace_wins_whatever_the_order_and_the_batches(
    before: list[str], after: list[str], cuts: list[bool]
) -> None:
    """A row made from a file that cannot be read knows neither trace nor parent, nor when it was stored."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    noted = [delivery("M", status) for status in before] + [KNOWING] + [delivery("M", status) for status in after]
    batch: list[Delivery] = []
    for one, cut in zip(noted, cuts, strict=False):
        batch.append(one)
        if cut:
            write_deliveries(db, batch)
            batch = []
    write_deliveries(db, batch)
    (row,) = rows(db).values()
    assert (row["trace_id"], row["parent_id"], row["sent_ms"], row["hops_before"]) == ("T", "P", T0, 0)
    assert row["stored_ms"] == T0 + 7.5
    assert row["status"] == noted[-1].status
    db.close()


@pytest.mark.parametrize("pause", [False, True], ids=["one batch", "two batches"])
async def test_a_delivery_read_back_from_disk_keeps_what_only_the_bus_knew(
    pause: bool, relay: RelayCore, clock: FakeClock
) -> None:
    await relay.register_endpoint(A)
    await relay.register_endpoint(B)
    root = await relay.publish(A, 0, sender=SENDER)
    child = await relay.publish(B, 1, sender=A, parent_id=root.message_id)
    before = (await relay.trace(child.message_id))[0] if pause else None
    clock.advance(5)
    await relay.claim(B)  # nobody listens, so it is read back
    await relay.fail(B, child.message_id, "no")
    (span,) = await relay.trace(child.message_id)
    assert (span.trace_id, span.parent_id, span.status) == (root.message_id, root.message_id, "failed")
    assert (span.sent_at, span.hops_before, span.hops_after) == (T0, 1, 2)
    assert (span.claimed_at, span.handled_at) == (T0 + 5000, T0 + 5000)
    if before is not None:
        changing = {"status", "code", "reason", "claimed_at", "handled_at"}
        assert span.model_dump(exclude=changing) == before.model_dump(exclude=changing)


async def test_a_text_that_is_no_unicode_costs_no_other_row(index: Index, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    good, bad = delivery(new_id()), delivery(new_id(), reason="bad \udcff", outcomes=[{"error": "\ud800"}])
    index.note(good)
    index.note(bad)
    index.note(publish(bad.message_id, dedupe="\udc00", result={"n": 1}))
    found = await index.run(rows)
    assert found[bad.message_id, bad.target]["reason"] == "bad ?"
    assert len(found) == 2
    assert await index.run(lambda db: db.execute("SELECT dedupe FROM publishes").fetchall()) == [("?",)]


async def test_a_number_beyond_sqlites_range_costs_no_other_row(index: Index, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    good, bad = delivery(new_id()), delivery(new_id(), expires_ms=10**30)  # a file may say so
    index.note(good)
    index.note(bad)
    found = await index.run(rows)
    assert found[bad.message_id, bad.target]["expires_ms"] == 2**63 - 1
    assert found[good.message_id, good.target]["expires_ms"] == T0 + 1000


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 700])
async def test_a_batch_of_any_size_is_written_whole_with_every_column(
    count: int, index: Index, clock: FakeClock
) -> None:
    new_id = UlidFactory(clock)
    outcome: dict[str, Any] = {"handler": "h", "ok": True}
    noted = [
        delivery(
            new_id(), Status.DONE, parent_id="P", code="c", reason="r", claimed_ms=T0 + 1.5, handled_ms=T0 + 2.5,
            replays=number, replay_of="O", outcomes=[outcome], ancestors=(A, B),
        )
        if number % 2
        else delivery(new_id())
        for number in range(count)
    ]  # fmt: skip
    for one in noted:
        index.note(publish(one.message_id, dedupe=f"s {one.message_id}", result={"n": one.replays}))
        index.note(one)
    found = await index.run(rows)
    for one in noted:
        row = found.pop((one.message_id, one.target))
        row["ancestors"] = tuple(orjson.loads(row["ancestors"]))
        row["outcomes"] = row["outcomes"] and orjson.loads(row["outcomes"])
        assert row == asdict(one)
    assert found == {}
    written = await index.run(lambda db: db.execute("SELECT * FROM publishes ORDER BY id").fetchall())
    assert written == [
        (one.message_id, SENDER, T0, "accepted", f"s {one.message_id}", f'{{"n":{one.replays}}}') for one in noted
    ]


async def test_an_error_in_a_look_up_is_its_callers_and_no_reason_to_build_anew(index: Index, data_dir: Path) -> None:
    inode = os.stat(data_dir / "index.db").st_ino
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        await index.run(lambda db: db.execute("SELEKT"))
    with pytest.raises(ZeroDivisionError):
        await index.run(lambda db: 1 // 0)
    await index.flush()
    assert os.stat(data_dir / "index.db").st_ino == inode


async def test_after_close_a_look_up_is_refused_and_a_row_is_dropped(data_dir: Path) -> None:
    index = Index(data_dir / "index.db", lambda new, old: None)
    index.open()
    await asyncio.to_thread(index.close)
    index.note(delivery("M"))
    with pytest.raises(Closed):
        await index.run(rows)


async def test_close_writes_what_is_noted_and_leaves_one_file(data_dir: Path) -> None:
    index = Index(data_dir / "index.db", lambda new, old: None)
    index.open()
    index.note(delivery("M"))
    await asyncio.to_thread(index.close)
    assert os.listdir(data_dir) == ["index.db"]
    db = connect(str(data_dir / "index.db"))
    assert len(rows(db)) == 1
    db.close()


def test_usage_and_outcomes_are_read_back_at_a_start(data_dir: Path, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    index = Index(data_dir / "index.db", lambda new, old: None)
    index.open()
    for number, status in enumerate(["accepted", "refused", "failed", "accepted", "partial"]):
        made = publish(new_id(T0 + number), created_ms=T0 + number, status=status)
        index.note(made._replace(dedupe=f"s {number}", result={"n": number}))
    index.note(publish(new_id(T0 + 9), created_ms=T0 + 9, dedupe="s 9"))
    index.close()
    again = Index(data_dir / "index.db", lambda new, old: None)
    again.open()
    assert [created for _, _, created in again.warm(T0)] == [T0 + 2, T0 + 3, T0 + 4, T0 + 9]
    assert again.recent_outcomes(2) == [("s 3", '{"n":3}'), ("s 4", '{"n":4}')]
    assert len(again.recent_outcomes(100)) == 5
    again.close()


def test_usage_is_found_by_its_own_time_after_the_clock_was_set_back(data_dir: Path, clock: FakeClock) -> None:
    new_id = UlidFactory(clock)
    index = Index(data_dir / "index.db", lambda new, old: None)
    index.open()
    before = publish(new_id(T0 + 60_000), created_ms=T0 + 60_000)
    since = [publish(new_id(T0 + number), created_ms=T0 + number) for number in range(3)]
    for row in (before, *since):
        index.note(row)
    index.close()
    again = Index(data_dir / "index.db", lambda new, old: None)
    again.open()
    assert {id for id, _, _ in again.warm(T0)} == {before.id, since[1].id, since[2].id}
    again.close()


# Locked


async def test_an_unwritable_index_stops_nobody_and_the_rows_arrive_afterwards(
    relay: RelayCore, data_dir: Path
) -> None:
    await relay.register_endpoint(A)
    async with unwritable(relay.bus.index):
        published = [(await relay.publish(A, number, sender=SENDER)).message_id for number in range(50)]
        await relay.bus.index.flush()  # tried, and known not to be written
        assert relay.bus.index.dirty
        published += [(await relay.publish(A, number, sender=SENDER)).message_id for number in range(50)]
    for message_id in published:  # without another row to carry them
        assert [span.status for span in await relay.trace(message_id)] == ["new"]
    assert not (data_dir / "index.db.damaged").exists()


async def test_rows_that_could_not_be_written_are_written_by_close(data_dir: Path) -> None:
    index = Index(data_dir / "index.db", lambda new, old: None)
    index.open()
    async with unwritable(index):
        index.note(delivery("M"))
        await index.flush()
    await asyncio.to_thread(index.close)
    db = connect(str(data_dir / "index.db"))
    assert len(rows(db)) == 1
    db.close()


async def test_the_newest_rows_are_kept_up_to_a_bound_and_reconcile_finds_the_others(
    data_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_KEEP_UNSAVED", 10)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        await tasks_ended("check index")
        async with unwritable(relay.bus.index):
            for number in range(30):
                await relay.publish(A, number, sender=SENDER)
            await relay.bus.index.flush()
        assert 0 < await relay.bus.index.run(lambda db: len(rows(db))) < 30
        assert relay.bus.index.dirty
        await relay.maintenance.checkpoint_index()
        assert await relay.bus.index.run(lambda db: len(rows(db))) == 30
        assert not relay.bus.index.dirty


async def test_an_index_that_is_locked_at_the_start_is_waited_for(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        old = await relay.publish(A, 0, sender=SENDER)
        await relay.claim(A)
        await relay.complete(A, old.message_id)
    inode = os.stat(data_dir / "index.db").st_ino
    with locked(data_dir / "index.db", "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
        relay = await RelayCore(data_dir, CONFIG, clock).__aenter__()
        try:
            new = await relay.publish(A, 1, sender=SENDER)
            assert new.delivered_to == 1
            await relay.bus.index.flush()  # tried again, in vain
        except BaseException:
            await relay.__aexit__(None, None, None)
            raise
    assert [span.status for span in await relay.trace(new.message_id)] == ["new"]
    assert [span.status for span in await relay.trace(old.message_id)] == ["done"]
    assert os.stat(data_dir / "index.db").st_ino == inode
    assert not (data_dir / "index.db.damaged").exists()
    await relay.__aexit__(None, None, None)


# Damaged, found at a start


def flip(path: Path, at: int, length: int = 64) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + length] = bytes(byte ^ 0xFF for byte in data[at : at + length])
    path.write_bytes(data)


def page_of(path: Path, table: str) -> int:
    """Return where the root page of a table begins."""
    db = sqlite3.connect(path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    db.close()
    return (int(page) - 1) * 4096


def lie_about_version(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 41}")
    db.close()


def replace_by_directory(path: Path, *, full: bool) -> None:
    path.unlink()
    path.mkdir()
    if full:
        (path / "precious").write_text("x")


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))
    path.symlink_to(path.with_name("elsewhere.db"))


def drop_table(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("DROP TABLE deliveries")
    db.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(os.urandom(50_000)),
    "one byte": lambda path: path.write_bytes(b"S"),
    "only its first page": lambda path: os.truncate(path, 4096),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2 // 4096 * 4096),
    "cut in a page": lambda path: os.truncate(path, path.stat().st_size - 1000),
    "zeroes in the middle": lambda path: path.write_bytes(
        (data := path.read_bytes())[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    ),
    "flipped bytes in the header": lambda path: flip(path, 0, 16),
    "flipped bytes in the root of deliveries": lambda path: flip(path, page_of(path, "deliveries")),
    "flipped bytes in the root of publishes": lambda path: flip(path, page_of(path, "publishes")),
    "flipped bytes in the schema": lambda path: flip(path, 100),
    "a table is missing": drop_table,
    "a directory": lambda path: replace_by_directory(path, full=False),
    "a full directory": lambda path: replace_by_directory(path, full=True),
    "a link": replace_by_link,
    "of a newer Relay": lie_about_version,
    "a text file": lambda path: path.write_text("hello\n" * 100),
    "a foreign log beside it": lambda path: path.with_name("index.db-wal").write_bytes(os.urandom(40_000)),
    "read-only": lambda path: path.chmod(0o400),
}


async def fill(relay: RelayCore) -> dict[tuple[str, str], dict[str, Any]]:
    """Publish so that there are messages in every state; return the rows."""

    async def handle(envelope: Envelope) -> None:
        if envelope.payload == "fail":
            raise ValueError("broken")

    for subject in (A, B):
        await relay.register_endpoint(subject)
    async with await relay.subscribe(A, handle):
        for number in range(60):
            await relay.publish(A, "fail" if number % 20 == 0 else number, sender=SENDER)
        await relay.idle()
    for number in range(60):
        await relay.publish(A, {"n": number}, sender=SENDER)
        await relay.publish("relay.agent.nobody", number, sender=SENDER)
    await relay.publish(A, 1, sender=SENDER, budget={"call_budget_remaining": 0})
    await relay.publish(B, 1, sender=SENDER)
    (failing,) = await relay.claim(B)
    await relay.publish(A, "child", sender=B, parent_id=failing.id)
    await relay.fail(B, failing.id, "no")
    return await relay.bus.index.run(rows)


@pytest.mark.parametrize("how", DAMAGE)
async def test_whatever_a_start_finds_the_bus_runs_and_the_index_is_what_it_was(
    how: str, data_dir: Path, clock: FakeClock
) -> None:
    path = data_dir / "index.db"
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        before = await fill(relay)
    await asyncio.to_thread(DAMAGE[how], path)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        published = await relay.publish(A, "after", sender=SENDER)
        assert published.delivered_to == 1
        await tasks_ended("check index")
        (span,) = await relay.trace(published.message_id)
        assert span.status == "new"
        after = await relay.bus.index.run(rows)
        del after[published.message_id, span.target]
        assert on_disk(after) == on_disk(before)
        assert await relay.bus.index.run(lambda db: db.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
        page, total, _ = await relay.dead_letter_page()
        assert total == len(await relay.dead_letters()) == 65
        assert len(page) == 65
    assert os.stat(path).st_mode == 0o100600


async def test_an_index_of_a_newer_relay_is_set_aside_whole(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await fill(relay)
    path = data_dir / "index.db"
    await asyncio.to_thread(lie_about_version, path)
    was = path.read_bytes()
    for _ in range(2):
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            await tasks_ended("check index")
    kept = data_dir / f"index.db.schema{len(MIGRATIONS) + 41}"
    assert kept.read_bytes() == was
    await asyncio.to_thread(flip, path, 0)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await tasks_ended("check index")
    assert kept.read_bytes() == was  # what is damaged later goes elsewhere


async def test_something_set_aside_earlier_is_not_in_the_way(data_dir: Path, clock: FakeClock) -> None:
    path = data_dir / "index.db"
    steps: list[Callable[[Path], object]] = [
        DAMAGE["a full directory"], DAMAGE["garbage"], DAMAGE["a full directory"], DAMAGE["a full directory"],
    ]  # fmt: skip
    for step in steps:
        async with RelayCore(data_dir, CONFIG, clock) as relay:
            await relay.register_endpoint(A)
            assert (await relay.publish(A, 1, sender=SENDER)).delivered_to == 1
        await asyncio.to_thread(step, path)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await tasks_ended("check index")
        assert await relay.bus.index.run(lambda db: len(rows(db))) == 4


async def test_half_an_index_passes_on_the_history_that_can_be_read(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        before = await fill(relay)
        for _ in range(10):
            await relay.publish(A, "x" * 100, sender=SENDER)
    path = data_dir / "index.db"
    await asyncio.to_thread(flip, path, page_of(path, "on_disk"))
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await tasks_ended("check index")
        after = await relay.bus.index.run(rows)
        done = {key for key, row in before.items() if row["status"] == "done"}
        assert len(done) == 57
        assert {key: after[key] for key in done} == {key: before[key] for key in done}
        assert not (data_dir / "index.db.damaged").exists()


AS_NOBODY = f"""
import asyncio, os, sys, sqlite3
from relay_core import RelayConfig, RelayCore
async def main():
    async with RelayCore(sys.argv[1], RelayConfig(durability="os")) as relay:
        await relay.register_endpoint("relay.agent.a")
        result = await relay.publish("relay.agent.a", 1, sender="relay.agent.s")
        print(len(await relay.trace(result.message_id)))
if os.geteuid() == 0:
    os.setgid({NOBODY_UID})
    os.setuid({NOBODY_UID})
for _ in range(2):
    asyncio.run(main())
    os.chmod(sys.argv[1] + "/index.db", 0o400)
"""


@pytest.mark.parametrize("foreign", [False, True], ids=["read-only", "another user's"])
def test_an_index_that_a_plain_user_may_not_write_is_no_obstacle(foreign: bool) -> None:
    """Root may write everything, so the bus runs as somebody else."""
    if foreign and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    with tempfile.TemporaryDirectory(prefix="relay-index-") as name:
        os.chmod(name, 0o755)
        place = Path(name) / "relay"
        place.mkdir(mode=0o700)
        if foreign:
            (place / "index.db").write_bytes(b"")
            (place / "index.db").chmod(0o400)
        if os.geteuid() == 0:
            os.chown(place, NOBODY_UID, NOBODY_UID)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, place], capture_output=True, text=True, timeout=PATIENCE_SECS
        )
        assert (done.returncode, done.stdout.split()) == (0, ["1", "1"]), done.stderr


# Damaged while it is in use


async def forget_cache(relay: RelayCore) -> None:
    """Make SQLite read from the file again what it holds in memory."""
    await relay.bus.index.run(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    await relay.bus.index.run(lambda db: db.execute("PRAGMA shrink_memory"))


def overwrite(path: Path, *, keep: int) -> None:
    """Write garbage over an open file, in place."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(keep)
        file.write(os.urandom(max(size - keep, 1)))


def delete_all(path: Path) -> None:
    for found in path.parent.glob("index.db*"):
        found.unlink()


def replace_by_garbage(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"garbage" * 999)


def replace_by_copy(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


RUNNING: dict[str, tuple[Callable[[Path], object], bool]] = {
    "deleted": (Path.unlink, True),
    "all of it deleted": (delete_all, True),
    "a directory": (lambda path: replace_by_directory(path, full=False), True),
    "a full directory": (lambda path: replace_by_directory(path, full=True), True),
    "replaced by garbage": (replace_by_garbage, True),
    "replaced by another index": (replace_by_copy, True),
    "overwritten in the middle": (lambda path: overwrite(path, keep=8192), False),
    "overwritten from the start": (lambda path: overwrite(path, keep=0), False),
    "truncated": (lambda path: os.truncate(path, 8192), False),
}


@pytest.mark.parametrize("how", RUNNING)
async def test_whatever_happens_to_it_in_use_the_bus_runs_and_it_is_built_anew(
    how: str, relay: RelayCore, data_dir: Path
) -> None:
    damage, history_survives = RUNNING[how]
    before = await fill(relay)
    (claimed,) = await relay.claim(A)
    before = await relay.bus.index.run(rows)
    await forget_cache(relay)
    await asyncio.to_thread(damage, data_dir / "index.db")
    published = await relay.publish(A, "after", sender=SENDER)
    assert published.delivered_to == 1
    assert [span.status for span in await relay.trace(published.message_id)] == ["new"]
    assert [span.status for span in await relay.trace(claimed.id)] == ["cur"]
    after = await relay.bus.index.run(rows)
    (new,) = after.keys() - before.keys()
    assert new[0] == published.message_id
    del after[new]
    assert on_disk(after) == on_disk(before)
    if history_survives:
        assert after == before
    assert await relay.bus.index.run(lambda db: db.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
    await relay.complete(A, claimed.id)
    assert [span.status for span in await relay.trace(claimed.id)] == ["done"]


async def test_a_look_up_that_meets_damage_is_answered_all_the_same(relay: RelayCore, data_dir: Path) -> None:
    await fill(relay)
    waiting = await relay.publish(A, "x", sender=SENDER)
    await forget_cache(relay)
    await asyncio.to_thread(overwrite, data_dir / "index.db", keep=8192)
    (span,) = await relay.trace(waiting.message_id)
    assert span.status == "new"
    assert (await relay.dead_letter_page())[1] == 65


async def test_the_index_is_built_anew_only_once(relay: RelayCore, data_dir: Path) -> None:
    await fill(relay)
    os.unlink(data_dir / "index.db")
    await relay.bus.index.flush()
    await relay.publish(A, 1, sender=SENDER)
    await relay.bus.index.flush()
    inode = os.stat(data_dir / "index.db").st_ino
    for number in range(10):
        await relay.publish(A, number, sender=SENDER)
        await relay.bus.index.flush()
    assert os.stat(data_dir / "index.db").st_ino == inode


async def test_rows_wait_while_there_can_be_no_index(relay: RelayCore, data_dir: Path) -> None:
    """Something that cannot be moved lies where the new one is built."""
    await relay.register_endpoint(A)
    os.unlink(data_dir / "index.db")
    os.mkdir(data_dir / "index.db.new")
    published = [(await relay.publish(A, number, sender=SENDER)).message_id for number in range(5)]
    with pytest.raises(OSError, match="directory"):
        await relay.trace(published[0])
    os.rmdir(data_dir / "index.db.new")
    for message_id in published:
        assert [span.status for span in await relay.trace(message_id)] == ["new"]

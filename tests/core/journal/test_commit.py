"""Commits: durable before it counts, settled once and in order, and nothing of a group whose sync failed."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.config import LimitsConfig, RelayConfig
from relay_core.core import RelayCore
from relay_core.errors import StorageError
from relay_core.journal import commit
from relay_core.journal.commit import QUICK_BYTES, QUICK_SECS, Commits
from relay_core.journal.journal import Durability, Journal
from relay_core.journal.recovery import recover
from relay_core.journal.segment import read_segment, segment_path, segments
from relay_core.journal.transaction import Move, Transaction
from relay_core.messages.envelope import Envelope
from relay_core.records.journal_history import JournalHistory
from relay_core.storage.maildir import CUR, FAILED, NEW, Maildir
from relay_core.testing import FakeClock
from tests.kit.waiting import until

BOX = "0123456789ab"


def message_id(number: int) -> str:
    return f"01HF00000000000000000{number:05d}"


def data(number: int) -> bytes:
    return orjson.dumps({"id": message_id(number), "n": number})


class Syncs:
    """The disk's side of fdatasync: it can be counted, held up and made to fail."""

    def __init__(self) -> None:
        self.count = 0
        self.done = 0
        self.error: OSError | None = None
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def has_done(self, count: int) -> bool:
        return self.done >= count

    def __call__(self, fd: int) -> None:
        self.count += 1
        self.entered.set()
        self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        os.fdatasync(fd)
        self.done += 1


class Bench:
    """A journal, one mailbox, and the settled transactions."""

    def __init__(self, directory: Path, durability: Durability, segment_bytes: int) -> None:
        self.syncs = Syncs()
        self.journal = Journal(directory / "journal", durability, segment_bytes=segment_bytes, fdatasync=self.syncs)
        self.commits = Commits(self.journal, asyncio.get_running_loop(), FakeClock())
        self.commits.checkpoints.before = self.commits.files.flush
        self.box = Maildir(directory / BOX)
        self.box.create(sync=False)
        self.settled: list[str] = []
        self.kills = 0

    def op(self, kind: str, number: int, content: bytes | None = None) -> Move:
        body = b"" if kind == "gone" else data(number) if content is None else content
        return Move(kind, BOX, self.box, message_id(number), body)

    def transaction(self, *ops: Move) -> Transaction:
        return Transaction(ops[0].message_id, list(ops), self._note)

    def new(self, number: int) -> Transaction:
        return self.transaction(self.op("new", number))

    def _note(self, transaction: Transaction) -> None:
        self.settled.append(transaction.message_id)

    def lines(self) -> list[dict[str, Any]]:
        return [
            record for sequence, path in segments(self.journal.directory) for record in read_segment(sequence, path)
        ]

    def journaled(self, kind: str) -> list[str]:
        """Return the messages with this op in the journal."""
        return [message for record in self.lines() for op, _, message, *_ in record["ops"] if op == kind]

    def after_a_kill(self) -> tuple[dict[str, dict[str, Any]], Maildir]:
        """Recover as if this process were killed now; return the outcomes by dedupe key, and the mailbox."""
        self.kills += 1
        killed = self.journal.directory.parent / f"killed{self.kills}"
        for name in (self.journal.directory.name, BOX):
            shutil.copytree(self.journal.directory.parent / name, killed / name, copy_function=_copy_if_there)
        box = Maildir(killed / BOX)
        history = JournalHistory()
        recover(killed / "journal", lambda _: box, history.note)
        return history.outcomes, box


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # a segment that a checkpoint has just dropped
        shutil.copy2(source, target)


@pytest.fixture
def open_bench(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def start(durability: Durability, *, segment_bytes: int = 1 << 24) -> AsyncIterator[Bench]:
        made = Bench(tmp_path, durability, segment_bytes)
        made.journal.open()
        made.commits.open()
        try:
            yield made
        finally:
            made.syncs.may_go.set()
            await made.commits.close()

    return start


class TestOs:
    async def test_a_transaction_is_journaled_and_settled_before_commit_first_waits(
        self, open_bench: Callable[..., Any]
    ) -> None:
        async with open_bench("os") as bench:
            commit = bench.commits.commit(bench.new(1))
            with pytest.raises(StopIteration):
                commit.send(None)
            assert bench.lines() == [{"id": message_id(1), "ops": [["new", BOX, message_id(1), orjson.loads(data(1))]]}]
            assert bench.settled == [message_id(1)]
            assert bench.box.whereabouts(message_id(1)) == {NEW}
            assert bench.box.ids(NEW) == []  # its file is made later
            assert bench.syncs.count == 0

    async def test_an_outcome_is_known_after_a_kill(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("os") as bench:
            transaction = bench.new(1)
            transaction.dedupe, transaction.result = "s one", {"messageId": message_id(1)}
            await bench.commits.commit(transaction)
            outcomes, box = bench.after_a_kill()
            assert outcomes == {"s one": {"messageId": message_id(1)}}
            assert box.whereabouts(message_id(1)) == {NEW}

    async def test_a_transaction_whose_line_finds_no_space_leaves_nothing(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("os") as bench:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
            try:
                transaction = bench.new(1)
                await bench.commits.commit(transaction)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert transaction.error is not None
            assert bench.settled == [message_id(1)]
            assert bench.box.whereabouts(message_id(1)) == set()
            _, box = bench.after_a_kill()
            assert box.whereabouts(message_id(1)) == set()

    async def test_nothing_is_ever_synced(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("os") as bench:
            await bench.commits.commit(bench.new(1))
            bench.box.claim(message_id(1))
            bench.commits.note_claimed(BOX, message_id(1))
            bench.commits.finish(BOX, bench.box, message_id(1))
            await bench.commits.settled()
        assert bench.syncs.count == 0


class TestOnTheLoop:
    """While the disk is quick, the loop itself syncs the group of a turn."""

    @pytest.fixture
    def syncing(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return who made each sync."""
        threads: list[str] = []
        sync = Journal.sync

        def note(journal: Journal) -> None:
            threads.append(threading.current_thread().name)
            sync(journal)

        monkeypatch.setattr(Journal, "sync", note)
        monkeypatch.setattr(commit, "QUICK_SYNCS", 1)
        return threads

    async def test_the_thread_syncs_until_several_in_a_row_were_quick(
        self, open_bench: Callable[..., Any], syncing: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(commit, "QUICK_SYNCS", 2)
        async with open_bench("fsync") as bench:
            clock = bench.commits._clock
            slow = iter([0.0, 2 * QUICK_SECS, 0.0, 0.0])
            bench.journal._fdatasync = lambda fd: clock.advance(next(slow, 0.0))
            for number in range(6):
                await bench.commits.commit(bench.new(number))
            assert syncing == ["relay-commit"] * 4 + ["MainThread"] * 2

    async def test_the_first_sync_is_the_threads_and_later_ones_the_loops(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync") as bench:
            for number in range(3):
                await bench.commits.commit(bench.new(number))
            assert syncing == ["relay-commit", "MainThread", "MainThread"]
            assert bench.settled == [message_id(number) for number in range(3)]

    async def test_a_slow_sync_gives_the_next_ones_to_the_thread_until_one_is_quick(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync") as bench:
            clock = bench.commits._clock
            slow = iter([0.0, 2 * QUICK_SECS, 2 * QUICK_SECS, 0.0, 0.0])
            bench.journal._fdatasync = lambda fd: clock.advance(next(slow, 0.0))
            for number in range(5):
                await bench.commits.commit(bench.new(number))
            assert syncing == ["relay-commit", "MainThread", "relay-commit", "relay-commit", "MainThread"]

    async def test_the_transactions_of_a_turn_share_a_sync(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(0))
            async with asyncio.TaskGroup() as group:
                for number in (1, 2, 3):
                    group.create_task(bench.commits.commit(bench.new(number)))
            assert syncing == ["relay-commit", "MainThread"]
            assert bench.settled == [message_id(number) for number in range(4)]

    async def test_a_large_group_is_the_threads(self, open_bench: Callable[..., Any], syncing: list[str]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(0))
            large = bench.op("new", 1, orjson.dumps("x" * QUICK_BYTES))
            await bench.commits.commit(bench.transaction(large))
            assert syncing == ["relay-commit"] * 2

    async def test_none_passes_a_group_that_the_thread_has(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(0))
            bench.syncs.entered.clear()
            bench.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                large = bench.op("new", 1, orjson.dumps("x" * QUICK_BYTES))
                group.create_task(bench.commits.commit(bench.transaction(large)))
                await asyncio.to_thread(bench.syncs.entered.wait, 30)
                group.create_task(bench.commits.commit(bench.new(2)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert bench.settled == [message_id(0)]
                bench.syncs.may_go.set()
            assert bench.settled == [message_id(number) for number in range(3)]

    async def test_a_full_segment_is_left_by_the_thread(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync", segment_bytes=300) as bench:
            await bench.commits.commit(bench.new(0))
            await bench.commits.commit(bench.new(1))
            await bench.commits.commit(bench.new(2))
            await until(lambda: bench.journal.sequence > 1)
            assert syncing[:2] == ["relay-commit", "MainThread"]

    async def test_the_thread_leaves_no_segment_that_the_loop_is_about_to_sync(
        self, open_bench: Callable[..., Any], syncing: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_bench("fsync", segment_bytes=300) as bench:
            may_return, synced = threading.Event(), []
            loop, sync = bench.commits._loop, Journal.sync

            class HeldLoop:
                """A loop that keeps the thread after it has handed over its group."""

                def call_soon_threadsafe(self, *call: Any) -> None:
                    loop.call_soon_threadsafe(*call)
                    may_return.wait(30)

                def __getattr__(self, name: str) -> Any:
                    return getattr(loop, name)

            def let_the_thread_go(journal: Journal) -> None:
                if threading.current_thread() is threading.main_thread():
                    may_return.set()
                    bench.syncs.left.wait(0.2)  # it must not come
                synced.append(journal.sequence)
                sync(journal)

            bench.syncs.left = threading.Event()
            rotate = Journal.rotate

            def note_rotation(journal: Journal) -> bool:
                done = rotate(journal)
                bench.syncs.left.set()
                return done

            monkeypatch.setattr(Journal, "sync", let_the_thread_go)
            monkeypatch.setattr(Journal, "rotate", note_rotation)
            bench.commits._loop = HeldLoop()
            await bench.commits.commit(bench.new(0))
            assert not bench.journal.full
            await bench.commits.commit(bench.transaction(bench.op("new", 1, orjson.dumps("x" * 300))))
            assert synced[:2] == [1, 1]
            await until(lambda: bench.journal.sequence == 2)

    async def test_a_failed_sync_on_the_loop_acknowledges_nothing(
        self, open_bench: Callable[..., Any], syncing: list[str]
    ) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(0))
            bench.syncs.error = OSError(errno.EIO, "no")
            failed = bench.new(1)
            await bench.commits.commit(failed)
            assert syncing == ["relay-commit", "MainThread"]
            assert failed.error is bench.syncs.error
            assert bench.journal.sequence == 2  # never synced again
            bench.syncs.error = None
            await bench.commits.commit(bench.new(2))
            _, box = bench.after_a_kill()
            assert box.ids(NEW) == [message_id(0), message_id(2)]


@pytest.mark.parametrize("durability", ["os", "fsync"])
class TestOps:
    async def test_each_kind(self, open_bench: Callable[..., Any], durability: Durability) -> None:
        async with open_bench(durability) as bench:
            await bench.commits.commit(bench.new(1))
            assert bench.box.whereabouts(message_id(1)) == {NEW}
            bench.box.claim(message_id(1))
            await bench.commits.commit(bench.transaction(bench.op("failed", 1, b'{"record":1}')))
            assert bench.box.whereabouts(message_id(1)) == {FAILED}
            await bench.commits.commit(bench.transaction(bench.op("again", 1)))
            assert bench.box.whereabouts(message_id(1)) == {NEW}
            await bench.commits.commit(bench.transaction(bench.op("gone", 1)))
            assert bench.box.whereabouts(message_id(1)) == set()
            assert bench.settled == [message_id(1)] * 4
            bench.commits.files.flush()
            assert bench.box.whereabouts(message_id(1)) == set()

    async def test_one_that_fails_stops_no_other(
        self, open_bench: Callable[..., Any], durability: Durability, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_failed = Maildir.write_failed

        def refuse_two(box: Maildir, message: str, record: bytes) -> None:
            if message == message_id(2):
                raise OSError(errno.EIO, "no")
            write_failed(box, message, record)

        monkeypatch.setattr(Maildir, "write_failed", refuse_two)
        async with open_bench(durability) as bench:
            for number in (1, 2, 3):
                await bench.commits.commit(bench.new(number))
            transaction = bench.transaction(*(bench.op("failed", number, b'{"record":1}') for number in (1, 2, 3)))
            await bench.commits.commit(transaction)
            assert transaction.error is None
            assert [str(transaction.failure(position)) for position in range(3)] == ["None", "[Errno 5] no", "None"]
            states = [bench.box.whereabouts(message_id(number)) for number in (1, 2, 3)]
            assert states == [{FAILED}, {NEW}, {FAILED}]
            _, box = bench.after_a_kill()  # the journal was amended
            assert [box.whereabouts(message_id(number)) for number in (1, 2, 3)] == states

    async def test_the_state_in_memory_follows_the_journal(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability) as bench:
            seen: list[bool] = []

            def look(transaction: Transaction) -> None:
                there = bench.box.whereabouts(transaction.message_id) == {NEW}
                seen.append(there and transaction.message_id in bench.journaled("new"))

            async with asyncio.TaskGroup() as group:
                for number in range(30):
                    group.create_task(
                        bench.commits.commit(Transaction(message_id(number), [bench.op("new", number)], look))
                    )
            assert seen == [True] * 30

    async def test_a_claim_and_an_end_are_in_the_journal_at_once(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        """No step of the loop in between: a kill right after the call finds them."""
        async with open_bench(durability) as bench:
            for number in (1, 2, 3, 4):
                await bench.commits.commit(bench.new(number))
                bench.box.claim(message_id(number))
                bench.commits.note_claimed(BOX, message_id(number))
            bench.commits.finish(BOX, bench.box, message_id(2))
            bench.box.unclaim(message_id(3))
            bench.commits.note_requeued(BOX, message_id(3))
            bench.commits.note_gone(BOX, message_id(4))
            _, box = bench.after_a_kill()
            assert (box.ids(NEW), box.ids(CUR)) == ([message_id(3)], [message_id(1)])

    async def test_a_claim_that_cannot_be_journaled_is_an_error(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability) as bench:
            bench.journal.close()
            with pytest.raises(OSError, match="closed"):
                bench.commits.note_claimed(BOX, message_id(1))
            with pytest.raises(OSError, match="closed"):
                bench.commits.finish(BOX, bench.box, message_id(1))

    async def test_an_end_that_cannot_be_journaled_leaves_the_message_claimed(
        self, open_bench: Callable[..., Any], durability: Durability, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_bench(durability) as bench:
            await bench.commits.commit(bench.new(1))
            bench.box.claim(message_id(1))
            put = Journal._put

            def refused(journal: Journal, data: bytes) -> None:
                raise OSError(errno.EIO, "no")

            monkeypatch.setattr(Journal, "_put", refused)
            with pytest.raises(OSError, match="no"):
                bench.commits.finish(BOX, bench.box, message_id(1))
            assert bench.box.whereabouts(message_id(1)) == {CUR}
            bench.box.unclaim(message_id(1))
            bench.commits.note_requeued(BOX, message_id(1))  # postponed, and before the next line
            monkeypatch.setattr(Journal, "_put", put)
            bench.commits.note_claimed(BOX, message_id(1))
            assert [op for record in bench.lines() for op, *_ in record["ops"]] == ["new", "back", "begun"]

    async def test_a_kill_finds_files_and_messages_without_a_file_alike(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability) as bench:
            for number in range(6):
                await bench.commits.commit(bench.new(number))
                if number == 2:
                    bench.commits.files.flush()
            for number in (1, 2, 4, 5):
                bench.box.claim(message_id(number))
                bench.commits.note_claimed(BOX, message_id(number))
            for number in (2, 5):
                bench.commits.finish(BOX, bench.box, message_id(number))
            _, box = bench.after_a_kill()
            waiting, begun = [0, 3], [1, 4]
            assert (box.ids(NEW), box.ids(CUR)) == (
                [message_id(number) for number in waiting],
                [message_id(number) for number in begun],
            )


@pytest.mark.parametrize("durability", ["os", "fsync"])
class TestCheckpoint:
    async def test_a_full_segment_is_retired_once_its_messages_are_files(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability, segment_bytes=500) as bench:
            numbers = iter(range(10_000))

            async def some_are_retired() -> bool:
                await bench.commits.commit(bench.new(next(numbers)))
                return segments(bench.journal.directory)[0][0] > 3

            await until(some_are_retired)
        assert len(bench.box.ids(NEW)) == next(numbers)

    async def test_a_segment_with_the_only_copy_of_a_message_stays(
        self, open_bench: Callable[..., Any], durability: Durability, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with open_bench(durability) as bench:
            with monkeypatch.context() as refusing:

                def refuse(box: Maildir, message: str) -> None:
                    raise OSError(errno.EIO, "no")

                refusing.setattr(Maildir, "write_pending", refuse)
                await bench.commits.commit(bench.new(1))
                bench.journal.rotate()
                with pytest.raises(OSError, match="only in the journal"):
                    bench.commits.checkpoints.run()
                _, box = bench.after_a_kill()
                assert box.ids(NEW) == [message_id(1)]
            bench.commits.checkpoints.run()
            assert bench.lines() == []
            assert bench.box.ids(NEW) == [message_id(1)]

    async def test_so_does_one_that_was_begun_while_the_files_were_written(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        """The messages of that segment were journaled after the flush."""
        async with open_bench(durability) as bench:
            await bench.commits.commit(bench.new(1))
            bench.journal.rotate()
            flush = bench.commits.checkpoints.before

            def then_another_comes() -> None:
                flush()
                transaction = bench.new(2)
                bench.journal.append([transaction.record()])
                transaction.carry_out(bench.commits.files)
                bench.journal.rotate()  # as after a failed sync

            bench.commits.checkpoints.before = then_another_comes
            bench.commits.checkpoints.run()
            assert bench.journaled("new") == [message_id(2)]
            _, box = bench.after_a_kill()
            assert box.ids(NEW) == [message_id(1), message_id(2)]

    async def test_a_kill_loses_nothing_whatever_the_checkpoints_did(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability, segment_bytes=500) as bench:
            for number in range(50):
                await bench.commits.commit(bench.new(number))
            _, box = bench.after_a_kill()
            assert len(box.ids(NEW)) == 50

    async def test_closing_makes_files_and_drops_the_journal(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability) as bench:
            await bench.commits.commit(bench.new(1))
        assert bench.lines() == []
        assert bench.box.ids(NEW) == [message_id(1)]

    async def test_a_close_that_cannot_make_a_file_keeps_the_journal(
        self, open_bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with open_bench(durability) as bench:
            bench.box.write(message_id(1), b"{}")
            await bench.commits.commit(bench.new(1))
        assert bench.journaled("new") == [message_id(1)]


class TestFsync:
    async def test_nothing_counts_before_the_sync_has_returned(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                publish = group.create_task(bench.commits.commit(bench.new(1)))
                await asyncio.to_thread(bench.syncs.entered.wait, 30)
                assert [line["id"] for line in bench.lines()] == [message_id(1)]
                assert bench.box.whereabouts(message_id(1)) == set()
                assert bench.settled == []
                assert not publish.done()
                bench.syncs.may_go.set()
            assert bench.box.whereabouts(message_id(1)) == {NEW}
            assert bench.settled == [message_id(1)]

    async def test_what_waits_shares_one_sync_and_settles_in_order(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(bench.commits.commit(bench.new(0)))
                await asyncio.to_thread(bench.syncs.entered.wait, 30)
                for number in range(1, 200):
                    group.create_task(bench.commits.commit(bench.new(number)))
                await asyncio.sleep(0)
                bench.syncs.may_go.set()
            assert bench.syncs.count == 2
            assert bench.settled == [message_id(number) for number in range(200)]

    async def test_a_caller_that_is_cancelled_leaves_nothing_half_done(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                publish = group.create_task(bench.commits.commit(bench.new(1)))
                await asyncio.to_thread(bench.syncs.entered.wait, 30)
                publish.cancel()
                await asyncio.sleep(0)
                assert not publish.done()
                bench.syncs.may_go.set()
            assert publish.cancelled()
            assert bench.settled == [message_id(1)]
            assert bench.box.whereabouts(message_id(1)) == {NEW}

    async def test_the_end_of_a_message_is_journaled_before_its_file_is_removed(
        self, open_bench: Callable[..., Any]
    ) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(1))
            bench.box.claim(message_id(1))
            bench.commits.note_gone(BOX, message_id(1))
            _, box = bench.after_a_kill()
            assert box.whereabouts(message_id(1)) == set()
            assert bench.box.whereabouts(message_id(1)) == {CUR}

    async def test_ends_are_synced_once_though_nothing_follows(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            for number in range(4):
                await bench.commits.commit(bench.new(number))
            for numbers, syncs in (((0, 1), 5), ((2, 3), 6)):
                for number in numbers:
                    bench.commits.note_gone(BOX, message_id(number))
                await until(partial(bench.syncs.has_done, syncs))
            assert bench.syncs.count == 6

    async def test_a_group_that_follows_spares_them_the_sync(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(1))
            bench.commits.note_gone(BOX, message_id(1))
            await bench.commits.commit(bench.new(2))
            assert bench.syncs.count == 2
            bench.commits.note_gone(BOX, message_id(2))
            await until(lambda: bench.syncs.done > 2)
            assert bench.syncs.count == 3

    async def test_claims_are_synced_too(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(1))
            bench.commits.note_claimed(BOX, message_id(1))
            await until(partial(bench.syncs.has_done, 2))
            bench.commits.note_requeued(BOX, message_id(1))
            await until(partial(bench.syncs.has_done, 3))
            assert (bench.journaled("begun"), bench.journaled("back")) == ([message_id(1)], [message_id(1)])

    async def test_a_message_whose_parking_failed_is_still_begun(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(1))
            bench.box.claim(message_id(1))
            bench.commits.note_claimed(BOX, message_id(1))
            bench.syncs.error = OSError(errno.EIO, "no")
            await bench.commits.commit(bench.transaction(bench.op("failed", 1, b"{}")))
            bench.syncs.error = None
            assert [op for op, *_ in bench.lines()[-1]["ops"]] == ["new", "begun"]
            bench.box.unclaim(message_id(1))  # as after a power loss: the claim was never on disk
            _, box = bench.after_a_kill()
            assert box.whereabouts(message_id(1)) == {CUR}

    async def test_what_comes_after_the_close_is_refused(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            pass
        transaction = bench.new(1)
        try:
            await bench.commits.commit(transaction)
        except Exception:
            return
        assert transaction.error is not None


class TestFailedSync:
    async def test_nothing_of_the_group_counts(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.error = OSError(errno.EIO, "the disk says no")
            changes = [bench.new(number) for number in range(10)]
            async with asyncio.TaskGroup() as group:
                for transaction in changes:
                    group.create_task(bench.commits.commit(transaction))
            assert [transaction.failure(0) for transaction in changes] == [bench.syncs.error] * 10
            assert bench.settled == [transaction.message_id for transaction in changes]
            assert bench.box.ids(NEW) == []
            assert bench.commits.degraded == "[Errno 5] the disk says no"
            _, box = bench.after_a_kill()
            assert box.ids(NEW) == []

    async def test_the_next_group_begins_a_new_segment_and_heals(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.error = OSError(errno.EIO, "no")
            await bench.commits.commit(bench.new(1))
            bench.syncs.error = None
            await bench.commits.commit(bench.new(2))
            assert bench.commits.degraded is None
            assert len(segments(bench.journal.directory)) == 2
            _, box = bench.after_a_kill()
            assert box.ids(NEW) == [message_id(2)]

    async def test_what_was_finished_before_stays_finished(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.new(1))
            bench.commits.note_gone(BOX, message_id(1))
            bench.box.remove(NEW, message_id(1))
            bench.syncs.error = OSError(errno.EIO, "no")
            await bench.commits.commit(bench.new(2))
            _, box = bench.after_a_kill()
            assert box.ids(NEW) == []

    async def test_an_end_is_repeated_if_the_last_sync_of_a_full_segment_fails(
        self, open_bench: Callable[..., Any]
    ) -> None:
        async with open_bench("fsync", segment_bytes=1) as bench:
            bench.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(bench.commits.commit(bench.new(1)))
                await asyncio.to_thread(bench.syncs.entered.wait, 30)
                bench.commits.note_gone(BOX, message_id(1))  # behind the group: the next sync is the rotation's
                bench.journal._fdatasync = failing = Syncs()
                failing.error = OSError(errno.EIO, "no")
                bench.syncs.may_go.set()
            await until(lambda: failing.count == 1)
            bench.journal._fdatasync = bench.syncs
            await bench.commits.settled()
            present = read_segment(2, segment_path(bench.journal.directory, 2))
            assert [op for record in present for op, *_ in record["ops"]] == ["gone"]

    async def test_a_dead_letter_that_was_to_be_replaced_is_still_there(self, open_bench: Callable[..., Any]) -> None:
        async with open_bench("fsync") as bench:
            await bench.commits.commit(bench.transaction(bench.op("failed", 1, b'{"record":1}')))
            bench.syncs.error = OSError(errno.EIO, "no")
            edited = bench.transaction(bench.op("new", 2), bench.op("gone", 1))
            await bench.commits.commit(edited)
            assert edited.error is not None
            _, box = bench.after_a_kill()
            assert box.whereabouts(message_id(1)) == {FAILED}
            assert box.whereabouts(message_id(2)) == set()

    async def test_a_retry_after_a_kill_gets_no_outcome_of_a_failed_publish(
        self, open_bench: Callable[..., Any]
    ) -> None:
        async with open_bench("fsync") as bench:
            bench.syncs.error = OSError(errno.EIO, "no")
            transaction = bench.new(1)
            transaction.dedupe, transaction.result = "s one", {"messageId": message_id(1)}
            await bench.commits.commit(transaction)
            outcomes, box = bench.after_a_kill()
            assert box.ids(NEW) == []
            assert outcomes == {}


class TestInTheBus:
    """The same, from where a publisher stands."""

    @pytest.fixture
    def syncs(self, monkeypatch: pytest.MonkeyPatch) -> Syncs:
        found = Syncs()
        defaults = Journal.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "fdatasync", found)
        monkeypatch.setattr(commit, "QUICK_SECS", -1.0)  # a sync that is held up must not hold up the loop
        return found

    async def test_a_failed_sync_acknowledges_nothing_marks_the_mailbox_and_heals(
        self, data_dir: Path, syncs: Syncs
    ) -> None:
        async with RelayCore(data_dir) as core:
            await core.register_endpoint("a.b")
            syncs.error = OSError(errno.EIO, "no")
            for _ in range(3):
                with pytest.raises(StorageError) as caught:
                    await core.publish("a.b", 1, sender="s")
                assert not caught.value.retryable
            (box,) = core.mailboxes()
            assert box.degraded == "[Errno 5] no"
            assert (box.depth, await core.inbox("a.b")) == (0, [])
            syncs.error = None
            await core.publish("a.b", 2, sender="s")
            (box,) = core.mailboxes()
            assert (box.degraded, box.depth) == (None, 1)
        async with RelayCore(data_dir) as core:
            assert [envelope.payload for envelope in await core.inbox("a.b")] == [2]

    async def test_a_full_disk_at_the_sync_is_worth_a_retry(self, data_dir: Path, syncs: Syncs) -> None:
        async with RelayCore(data_dir) as core:
            await core.register_endpoint("a.b")
            syncs.error = OSError(errno.ENOSPC, "full")
            with pytest.raises(StorageError) as caught:
                await core.publish("a.b", 1, sender="s", dedupe_id="one")
            assert (caught.value.code, caught.value.retryable) == ("storage_full", True)
            syncs.error = None
            assert (await core.publish("a.b", 1, sender="s", dedupe_id="one")).delivered_to == 1
            assert len(await core.inbox("a.b")) == 1

    async def test_a_dead_letter_whose_sync_failed_stays_claimed(self, data_dir: Path, syncs: Syncs) -> None:
        async with RelayCore(data_dir) as core:
            endpoint = await core.register_endpoint("a.b")
            await core.publish("a.b", 1, sender="s")
            (envelope,) = await core.claim("a.b")
            syncs.error = OSError(errno.EIO, "no")
            with pytest.raises(StorageError):
                await core.fail("a.b", envelope.id, "no good")
            assert core.mailboxes()[0].claimed == 1
            await core.idle()
            assert os.listdir(endpoint.maildir_path / "cur") == [f"{envelope.id}.json"]
            assert await core.dead_letters() == []
        syncs.error = None
        async with RelayCore(data_dir) as core:
            (letter,) = await core.dead_letters()
            assert letter.message_id == envelope.id

    async def test_a_handler_runs_once_although_the_journal_cannot_be_written(
        self, data_dir: Path, tmp_path: Path
    ) -> None:
        handled: list[int] = []

        async def handle(envelope: Envelope) -> None:
            handled.append(envelope.payload)

        async with RelayCore(data_dir) as core:
            await core.register_endpoint("a.b")
            await core.publish("a.b", 1, sender="s")
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
            try:
                await core.subscribe("a.b", handle)
                await core.idle()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            for name in ("mailboxes", "journal"):
                shutil.copytree(data_dir / name, tmp_path / "killed" / name)
        (tmp_path / "killed").chmod(0o700)
        async with RelayCore(tmp_path / "killed") as core:
            await core.subscribe("a.b", handle)
            await core.idle()
        assert handled == [1]

    @pytest.mark.may_block("it holds the loop until there is a file")
    async def test_a_file_of_our_own_is_no_discovery_before_it_is_counted(self, data_dir: Path, syncs: Syncs) -> None:
        handled: list[str] = []

        async def handle(envelope: Envelope) -> None:
            handled.append(envelope.id)

        async with RelayCore(data_dir, RelayConfig(limits=LimitsConfig(max_payload_bytes=2_000_000))) as core:
            subjects = [f"a.{number:02d}" for number in range(16)]
            for subject in subjects:
                await core.register_endpoint(subject)
            await core.subscribe("a.>", handle)
            first = core.bus.mailboxes.select("a.>")[0]
            syncs.entered.clear()
            syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                publish = group.create_task(core.publish("a.>", "x" * 1_000_000, sender="s"))
                await asyncio.to_thread(syncs.entered.wait)
                syncs.may_go.set()
                while not (names := os.listdir(first.maildir.new)):
                    pass  # the loop is held, so nothing is settled, and the other copies are still being written
                core.bus.intake.rescan()
                core.bus.drops._on_drop(first.hash, names[0])  # as a poll of the directory would have it
            message_id = publish.result().message_id
            await core.idle()
            assert handled == [message_id] * len(subjects)
            assert {span.status for span in await core.trace(message_id)} == {"done"}
            assert [state.depth for state in core.mailboxes()] == [0] * len(subjects)

    @pytest.mark.may_block("it holds the loop until there is a file")
    async def test_a_replay_has_not_failed_before_its_dead_letter_counts(self, data_dir: Path, syncs: Syncs) -> None:
        async def fail(envelope: Envelope) -> None:
            syncs.entered.clear()
            syncs.may_go.clear()
            raise ValueError("no good")

        async with RelayCore(data_dir) as core:
            await core.register_endpoint("a.b")
            sent = (await core.publish("a.b", 1, sender="s")).message_id
            await core.claim("a.b")
            await core.fail("a.b", sent, "no")
            await core.subscribe("a.b", fail)
            run = core.replays.start((await core.plan_replay()).id)
            while not run._outstanding:
                await core.bus.index.flush()
            (answer,), (box,) = run._outstanding, core.bus.mailboxes
            await asyncio.to_thread(syncs.entered.wait)
            syncs.may_go.set()
            while box.maildir.whereabouts(sent) != {FAILED}:
                pass
            core.replays.look(answer)
            assert not answer.handled.done()
            assert (await run.wait()).failed == 1
            assert [letter.message_id for letter in await core.dead_letters()] == [sent]

    @pytest.mark.parametrize("levels", [100, 300, 1000])
    async def test_a_dropped_file_stops_no_commit_however_it_is_nested_and_laid_out(
        self, data_dir: Path, levels: int
    ) -> None:
        async with RelayCore(data_dir) as core:
            endpoint = await core.register_endpoint("a.b")
            sent = (await core.publish("a.b", 0, sender="s")).message_id
            (envelope,) = await core.claim("a.b")
            await core.complete("a.b", sent)
            deep = orjson.Fragment(b"[\n" * levels + b"]\n" * levels)
            draft = data_dir / "draft"
            draft.write_bytes(orjson.dumps(envelope.to_wire() | {"payload": deep}))
            draft.rename(endpoint.maildir_path / "new" / f"{sent}.json")
            async with asyncio.timeout(30):
                await core.wait_inbox("a.b")
                for taken in await core.claim("a.b"):
                    await core.fail("a.b", taken.id, "no good")
                (letter,) = await core.dead_letters()
                assert letter.code == ("consumer_failed" if levels == 100 else "malformed")
                assert (await core.publish("a.b", 1, sender="s")).delivered_to == 1

    @pytest.mark.parametrize("durability", ["os", "fsync"])
    async def test_a_checkpoint_makes_the_files_first(
        self, data_dir: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("relay_core.journal.file_writer.LINGER_SECS", 3600.0)
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            endpoint = await core.register_endpoint("a.b")
            await until(lambda: not core.bus.index.dirty)  # that check makes files, too
            for number in range(3):
                await core.publish("a.b", number, sender="s")
            await core.claim("a.b")
            await asyncio.to_thread(core.bus.journal.rotate)
            await asyncio.to_thread(core.bus.commits.checkpoints.run)
            files = [len(os.listdir(endpoint.maildir_path / state)) for state in ("new", "cur")]
            assert (files, len(segments(core.bus.journal.directory))) == ([2, 1], 1)

    async def test_without_fsync_nothing_is_synced(self, data_dir: Path, syncs: Syncs) -> None:
        async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
            await core.register_endpoint("a.b")
            await core.publish("a.b", 1, sender="s", dedupe_id="one")
            assert syncs.count == 0

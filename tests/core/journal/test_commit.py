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
from relay_core.journal.commit import Commits
from relay_core.journal.journal import Durability, Journal
from relay_core.journal.recovery import Recovered, recover
from relay_core.journal.segment import read_segment, segments, transaction_line
from relay_core.journal.transaction import Move, Transaction
from relay_core.messages.envelope import Envelope
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
    """A journal, one mailbox, and what was settled."""

    def __init__(self, directory: Path, durability: Durability, segment_bytes: int) -> None:
        self.syncs = Syncs()
        self.journal = Journal(directory / "journal", durability, segment_bytes=segment_bytes, fdatasync=self.syncs)
        self.commits = Commits(self.journal, asyncio.get_running_loop(), FakeClock())
        self.box = Maildir(directory / BOX)
        self.box.create(sync=False)
        self.settled: list[str] = []

    def op(self, kind: str, number: int, content: bytes | None = None) -> Move:
        body = b"" if kind == "gone" else data(number) if content is None else content
        return Move(kind, BOX, self.box, message_id(number), body)

    def change(self, *ops: Move) -> Transaction:
        return Transaction(ops[0].message_id, list(ops), self._note)

    def new(self, number: int) -> Transaction:
        return self.change(self.op("new", number))

    def _note(self, change: Transaction) -> None:
        self.settled.append(change.message_id)

    def lines(self) -> list[dict[str, Any]]:
        return [
            record for sequence, path in segments(self.journal.directory) for record in read_segment(sequence, path)
        ]

    def said(self, kind: str) -> list[str]:
        """Return the messages of which the journal says this."""
        return [message for record in self.lines() for op, _, message, *_ in record["ops"] if op == kind]

    def after_a_kill(self) -> tuple[Recovered, Maildir]:
        """Return what the next process would find if this one were killed now."""
        killed = self.journal.directory.parent / "killed"
        for name in (self.journal.directory.name, BOX):
            shutil.copytree(self.journal.directory.parent / name, killed / name, copy_function=_copy_if_there)
        box = Maildir(killed / BOX)
        return recover(killed / "journal", lambda _: box), box


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # a segment that a checkpoint has just dropped
        shutil.copy2(source, target)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def open_bench(durability: Durability, *, segment_bytes: int = 1 << 24) -> AsyncIterator[Bench]:
        made = Bench(tmp_path, durability, segment_bytes)
        made.journal.open()
        made.commits.open()
        try:
            yield made
        finally:
            made.syncs.may_go.set()
            await made.commits.close()

    return open_bench


class TestOs:
    async def test_a_change_is_carried_out_before_commit_first_waits(self, bench: Callable[..., Any]) -> None:
        async with bench("os") as it:
            commit = it.commits.commit(it.new(1))
            with pytest.raises(StopIteration):
                commit.send(None)
            assert it.box.ids(NEW) == [message_id(1)]
            assert it.settled == [message_id(1)]
            assert it.lines() == []
            assert it.syncs.count == 0

    async def test_an_atomic_change_is_journaled_and_done(self, bench: Callable[..., Any]) -> None:
        async with bench("os") as it:
            await it.commits.commit(it.new(1), atomic=True)
            first, second = it.lines()
            assert first["ops"] == [["new", BOX, message_id(1), {"id": message_id(1), "n": 1}]]
            assert "sync" not in first
            assert second == {"done": message_id(1)}

    async def test_one_with_a_dedupe_id_too(self, bench: Callable[..., Any]) -> None:
        async with bench("os") as it:
            change = it.new(1)
            change.dedupe, change.result = "s one", {"messageId": message_id(1)}
            await it.commits.commit(change)
            assert [line.get("dedupe") for line in it.lines()] == ["s one", None]
            recovered, _ = it.after_a_kill()
            assert recovered.outcomes == {"s one": {"messageId": message_id(1)}}
            assert recovered.repaired == 0

    async def test_one_whose_line_was_taken_is_done_though_the_disk_has_no_more_room(
        self, bench: Callable[..., Any]
    ) -> None:
        async with bench("os") as it:
            change = it.new(1)
            line = transaction_line(message_id(1), [("new", BOX, message_id(1), data(1))], sync=False)
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            just_enough = len(b"%08x \n" % 0) + len(line) + 768
            resource.setrlimit(resource.RLIMIT_FSIZE, (just_enough, before[1]))
            try:
                await it.commits.commit(change, atomic=True)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert (change.error, change.failures) == (None, None)
            assert it.box.ids(NEW) == [message_id(1)]
            assert it.lines()[1:] == [{"done": message_id(1)}]

    async def test_what_is_finished_needs_no_line(self, bench: Callable[..., Any]) -> None:
        async with bench("os") as it:
            it.commits.note_gone(BOX, message_id(1))
            assert it.lines() == []


@pytest.mark.parametrize("durability", ["os", "fsync"])
class TestOps:
    async def test_each_kind(self, bench: Callable[..., Any], durability: Durability) -> None:
        async with bench(durability) as it:
            await it.commits.commit(it.new(1))
            assert it.box.whereabouts(message_id(1)) == {NEW}
            it.box.claim(message_id(1))
            await it.commits.commit(it.change(it.op("failed", 1, b'{"record":1}')))
            assert it.box.whereabouts(message_id(1)) == {FAILED}
            await it.commits.commit(it.change(it.op("again", 1)), atomic=True)
            assert it.box.whereabouts(message_id(1)) == {NEW}
            await it.commits.commit(it.change(it.op("gone", 1)))
            assert it.box.whereabouts(message_id(1)) == set()
            assert it.settled == [message_id(1)] * 4

    async def test_one_that_fails_stops_no_other(self, bench: Callable[..., Any], durability: Durability) -> None:
        async with bench(durability) as it:
            await it.commits.commit(it.new(2))
            change = it.change(it.op("new", 1), it.op("new", 2), it.op("new", 3))
            await it.commits.commit(change)
            assert it.box.ids(NEW) == [message_id(1), message_id(2), message_id(3)]
            assert change.error is None
            assert isinstance(change.failure(1), FileExistsError)
            assert change.failure(0) is None
            assert change.failure(2) is None

    async def test_what_is_in_memory_follows_what_is_on_disk(
        self, bench: Callable[..., Any], durability: Durability
    ) -> None:
        async with bench(durability) as it:
            seen: list[bool] = []

            def look(change: Transaction) -> None:
                seen.append(it.box.whereabouts(change.message_id) == {NEW})

            async with asyncio.TaskGroup() as group:
                for number in range(100):
                    group.create_task(it.commits.commit(Transaction(message_id(number), [it.op("new", number)], look)))
            assert seen == [True] * 100


class TestFsync:
    async def test_nothing_counts_before_the_sync_has_returned(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                publish = group.create_task(it.commits.commit(it.new(1)))
                await asyncio.to_thread(it.syncs.entered.wait, 30)
                assert [line["id"] for line in it.lines()] == [message_id(1)]
                assert it.box.ids(NEW) == []
                assert it.settled == []
                assert not publish.done()
                it.syncs.may_go.set()
            assert it.box.ids(NEW) == [message_id(1)]
            assert it.settled == [message_id(1)]

    async def test_what_waits_shares_one_sync_and_settles_in_order(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                group.create_task(it.commits.commit(it.new(0)))
                await asyncio.to_thread(it.syncs.entered.wait, 30)
                for number in range(1, 200):
                    group.create_task(it.commits.commit(it.new(number)))
                await asyncio.sleep(0)
                it.syncs.may_go.set()
            assert it.syncs.count == 2
            assert it.settled == [message_id(number) for number in range(200)]

    async def test_a_caller_that_is_cancelled_leaves_nothing_half_done(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.may_go.clear()
            async with asyncio.TaskGroup() as group:
                publish = group.create_task(it.commits.commit(it.new(1)))
                await asyncio.to_thread(it.syncs.entered.wait, 30)
                publish.cancel()
                await asyncio.sleep(0)
                assert not publish.done()
                it.syncs.may_go.set()
            assert publish.cancelled()
            assert it.settled == [message_id(1)]
            assert it.box.ids(NEW) == [message_id(1)]

    async def test_what_is_finished_is_said_before_the_file_goes(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.new(1))
            it.box.claim(message_id(1))
            it.commits.note_gone(BOX, message_id(1))
            _, box = it.after_a_kill()
            assert box.whereabouts(message_id(1)) == set()
            assert it.box.whereabouts(message_id(1)) == {CUR}

    async def test_ends_are_synced_once_though_nothing_follows(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            for number in range(4):
                await it.commits.commit(it.new(number))
            for numbers, syncs in (((0, 1), 5), ((2, 3), 6)):
                for number in numbers:
                    it.commits.note_gone(BOX, message_id(number))
                await until(partial(it.syncs.has_done, syncs))
            assert it.syncs.count == 6

    async def test_a_group_that_follows_spares_them_the_sync(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.new(1))
            it.commits.note_gone(BOX, message_id(1))
            await it.commits.commit(it.new(2))
            assert it.syncs.count == 2
            it.commits.note_gone(BOX, message_id(2))
            await until(lambda: it.syncs.done > 2)
            assert it.syncs.count == 3

    async def test_a_claim_is_written_with_the_next_sync_unless_it_is_over_by_then(
        self, bench: Callable[..., Any]
    ) -> None:
        async with bench("fsync") as it:
            for number in range(4):
                await it.commits.commit(it.new(number))
            for number in range(4):
                it.commits.note_claimed(BOX, message_id(number))
            it.commits.note_gone(BOX, message_id(2))
            it.commits.note_requeued(BOX, message_id(3))
            await until(lambda: it.syncs.done > 4)
            assert it.said("begun") == [message_id(0), message_id(1)]
            assert it.said("back") == []
            it.commits.note_requeued(BOX, message_id(0))
            await until(lambda: it.syncs.done > 5)
            assert it.said("back") == [message_id(0)]
            _, box = it.after_a_kill()
            assert (box.ids(NEW), box.ids(CUR)) == ([message_id(0), message_id(3)], [message_id(1)])

    async def test_a_message_whose_parking_failed_is_still_begun(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.new(1))
            it.box.claim(message_id(1))
            it.commits.note_claimed(BOX, message_id(1))
            it.syncs.error = OSError(errno.EIO, "no")
            await it.commits.commit(it.change(it.op("failed", 1, b"{}")))
            it.syncs.error = None
            assert it.said("begun") == [message_id(1), message_id(1)]
            it.box.unclaim(message_id(1))  # as after a power loss: the claim was never on disk
            _, box = it.after_a_kill()
            assert box.whereabouts(message_id(1)) == {CUR}

    async def test_a_full_segment_is_checkpointed(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync", segment_bytes=500) as it:
            for number in range(50):
                await it.commits.commit(it.new(number))
        left = segments(it.journal.directory)
        assert len(left) == 1
        assert left[0][0] > 3
        assert len(it.box.ids(NEW)) == 50

    async def test_a_kill_loses_nothing_whatever_the_checkpoints_did(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync", segment_bytes=500) as it:
            for number in range(50):
                await it.commits.commit(it.new(number))
            _, box = it.after_a_kill()
            assert len(box.ids(NEW)) == 50

    async def test_closing_drops_the_journal(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.new(1))
        assert it.lines() == []
        assert it.box.ids(NEW) == [message_id(1)]

    async def test_what_comes_after_the_close_is_refused(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            pass
        change = it.new(1)
        try:
            await it.commits.commit(change)
        except Exception:
            return
        assert change.error is not None


class TestFailedSync:
    async def test_nothing_of_the_group_counts(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.error = OSError(errno.EIO, "the disk says no")
            changes = [it.new(number) for number in range(10)]
            async with asyncio.TaskGroup() as group:
                for change in changes:
                    group.create_task(it.commits.commit(change))
            assert [change.failure(0) for change in changes] == [it.syncs.error] * 10
            assert it.settled == [change.message_id for change in changes]
            assert it.box.ids(NEW) == []
            assert it.commits.degraded == "[Errno 5] the disk says no"
            _, box = it.after_a_kill()
            assert box.ids(NEW) == []

    async def test_the_next_group_begins_a_new_segment_and_heals(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.error = OSError(errno.EIO, "no")
            await it.commits.commit(it.new(1))
            it.syncs.error = None
            await it.commits.commit(it.new(2))
            assert it.commits.degraded is None
            assert len(segments(it.journal.directory)) == 2
            _, box = it.after_a_kill()
            assert box.ids(NEW) == [message_id(2)]

    async def test_what_was_finished_before_stays_finished(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.new(1))
            it.commits.note_gone(BOX, message_id(1))
            it.box.remove(NEW, message_id(1))
            it.syncs.error = OSError(errno.EIO, "no")
            await it.commits.commit(it.new(2))
            _, box = it.after_a_kill()
            assert box.ids(NEW) == []

    async def test_a_dead_letter_that_was_to_be_replaced_is_still_there(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            await it.commits.commit(it.change(it.op("failed", 1, b'{"record":1}')))
            it.syncs.error = OSError(errno.EIO, "no")
            edited = it.change(it.op("new", 2), it.op("gone", 1))
            await it.commits.commit(edited, atomic=True)
            assert edited.error is not None
            _, box = it.after_a_kill()
            assert box.whereabouts(message_id(1)) == {FAILED}
            assert box.whereabouts(message_id(2)) == set()

    async def test_a_retry_after_a_kill_is_not_told_that_it_was_published(self, bench: Callable[..., Any]) -> None:
        async with bench("fsync") as it:
            it.syncs.error = OSError(errno.EIO, "no")
            change = it.new(1)
            change.dedupe, change.result = "s one", {"messageId": message_id(1)}
            await it.commits.commit(change)
            recovered, box = it.after_a_kill()
            assert box.ids(NEW) == []
            assert recovered.outcomes == {}


class TestInTheBus:
    """The same, from where a publisher stands."""

    @pytest.fixture
    def syncs(self, monkeypatch: pytest.MonkeyPatch) -> Syncs:
        found = Syncs()
        defaults = Journal.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "fdatasync", found)
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

    async def test_without_fsync_nothing_is_synced(self, data_dir: Path, syncs: Syncs) -> None:
        async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
            await core.register_endpoint("a.b")
            await core.publish("a.b", 1, sender="s", dedupe_id="one")
            assert syncs.count == 0

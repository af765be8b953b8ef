"""The writer of files: only messages that rest become files, soon, within bounds, and none is given up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.core import RelayCore
from relay_core.journal import file_writer
from relay_core.journal.file_writer import LINGER_SECS, FileWriter
from relay_core.journal.segment import segments
from relay_core.journal.transaction import Move
from relay_core.messages.envelope import Envelope
from relay_core.storage.maildir import CUR, FAILED, NEW, Maildir
from relay_core.testing import FakeClock
from tests.kit.bus import config
from tests.kit.waiting import until, wait_until

BOX = "0123456789ab"
BIG = b'"' + b"x" * 10_000 + b'"'
DURABILITIES = ("os", "fsync")
pytestmark = pytest.mark.may_block("it uses the writer as its threads do")


def message_id(number: int) -> str:
    return f"01HF00000000000000000{number:05d}"


class Room:
    """Something that can be given up on a full disk."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


class Bench:
    """A writer and one mailbox; its thread is not started."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.room = Room()
        self.writer = FileWriter(self.room, self.clock, max_bytes=100_000)
        self.box = Maildir(directory / BOX)
        self.box.create(sync=False)

    def hold(self, *numbers: int, data: bytes | None = None) -> None:
        for number in numbers:
            content = orjson.dumps({"n": number}) if data is None else data
            self.writer.hold(Move("new", BOX, self.box, message_id(number), content))

    def on_disk(self, state: str) -> list[int]:
        return [int(id[-5:]) for id in self.box.ids(state)]


class Refusing:
    """A disk that refuses files while `error` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.tries: list[str] = []
        original = Maildir.write_pending

        def write_pending(box: Maildir, message: str) -> None:
            self.tries.append(message)
            if self.error is not None and message in box.pending:
                raise self.error
            original(box, message)

        monkeypatch.setattr(Maildir, "write_pending", write_pending)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    with made.writer._changed:
        made.writer._is_stopping = True
        made.writer._changed.notify_all()
    if made.writer._thread is not None:
        made.writer._thread.join()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Refusing:
    return Refusing(monkeypatch)


class TestLinger:
    def test_a_message_becomes_a_file_when_no_other_follows_and_not_before(self, bench: Bench) -> None:
        bench.writer.open()
        for number in range(3):
            started = time.monotonic()
            bench.hold(number)
            wait_until(lambda: len(bench.on_disk(NEW)) == number + 1)  # noqa: B023
            assert time.monotonic() - started >= LINGER_SECS / 5
            wait_until(lambda: bench.writer.is_idle)
        assert os.stat(f"{bench.box.new}{message_id(0)}.json").st_mode & 0o777 == 0o600
        assert orjson.loads(bench.box.read(NEW, message_id(2), limit=100)) == {"n": 2}
        assert bench.box.names("tmp") == []

    def test_under_steady_traffic_it_lingers_but_waits_for_no_pause(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_writer, "LINGER_SECS", 0.5)
        bench.writer.open()
        numbers = iter(range(100_000))
        started = time.monotonic()

        def another_comes() -> bool:
            bench.hold(next(numbers))
            return 0 in bench.on_disk(NEW)

        wait_until(another_comes)
        assert time.monotonic() - started >= 0.5

    def test_after_a_long_round_the_next_messages_are_written_at_once(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that came while it was writing have waited for long enough."""
        original = Maildir.write_pending
        entered, may_go = threading.Event(), threading.Event()

        def slow(box: Maildir, message: str) -> None:
            entered.set()
            may_go.wait(30)
            original(box, message)

        monkeypatch.setattr(Maildir, "write_pending", slow)
        bench.hold(0)
        bench.writer.open()
        entered.wait(30)
        began = time.monotonic()
        bench.hold(1)
        wait_until(lambda: time.monotonic() - began > LINGER_SECS)
        waits: list[float] = []
        wait_for = bench.writer._changed.wait_for

        def watched(predicate: Callable[[], bool], timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return wait_for(predicate, timeout)

        monkeypatch.setattr(bench.writer._changed, "wait_for", watched)
        may_go.set()
        wait_until(lambda: bench.on_disk(NEW) == [0, 1])
        assert waits == []

    def test_a_message_that_has_ended_never_becomes_a_file(self, bench: Bench, disk: Refusing) -> None:
        bench.hold(1, 2, 3, 4)
        bench.box.claim(message_id(1))
        bench.box.complete(message_id(1))
        bench.box.remove(NEW, message_id(2))
        bench.box.move_to_failed(message_id(3), b"{}")
        bench.writer.flush()
        assert (bench.on_disk(NEW), bench.on_disk(CUR), bench.on_disk(FAILED)) == ([4], [], [3])
        assert disk.tries == [message_id(4)]
        assert bench.writer.is_idle

    def test_a_claimed_message_becomes_a_file_in_cur(self, bench: Bench) -> None:
        bench.hold(1, 2)
        assert bench.box.claim(message_id(1))
        assert bench.box.claim(message_id(2))
        assert bench.box.unclaim(message_id(2))
        bench.writer.flush()
        assert (bench.on_disk(NEW), bench.on_disk(CUR)) == ([2], [1])
        assert bench.box.complete(message_id(1))
        assert bench.on_disk(CUR) == []

    @pytest.mark.parametrize("end", ["claim", "complete", "fail", "remove"])
    def test_a_message_that_moves_while_its_file_is_written_is_in_one_place(self, bench: Bench, end: str) -> None:
        """The move comes after the writer has looked and before the file has its name."""
        bench.hold(1)
        moves: dict[str, Callable[[], object]] = {
            "claim": lambda: bench.box.claim(message_id(1)),
            "complete": lambda: bench.box.claim(message_id(1)) and bench.box.complete(message_id(1)),
            "fail": lambda: bench.box.move_to_failed(message_id(1), b"{}"),
            "remove": lambda: bench.box.remove(NEW, message_id(1)),
        }

        class Data:
            def __init__(self, data: bytes) -> None:
                self._data = data

            @property
            def data(self) -> bytes:
                moves[end]()
                return self._data

        pending = bench.box.pending[message_id(1)]
        pending.message = Data(pending.message.data)
        bench.box.write_pending(message_id(1))
        there = (bench.on_disk(NEW), bench.on_disk(CUR), bench.on_disk(FAILED))
        assert there == ([], [1] if end == "claim" else [], [1] if end == "fail" else [])
        assert not bench.box.pending

    def test_an_end_and_the_making_of_its_file_are_never_both(self, bench: Bench) -> None:
        """Two threads, many times: whichever comes first, no file is left of a message that has ended."""
        bench.writer.open()
        for number in range(300):
            bench.hold(number)
            thread = threading.Thread(target=bench.writer.flush)
            thread.start()
            assert bench.box.claim(message_id(number))
            assert bench.box.complete(message_id(number))
            thread.join()
        bench.writer.flush()
        assert (bench.on_disk(NEW), bench.on_disk(CUR), bench.box.pending) == ([], [], {})


class TestBounds:
    def test_it_is_full_beyond_its_limit_and_counts_what_has_no_file(self, bench: Bench) -> None:
        assert (bench.writer.is_idle, bench.writer.waiting, bench.writer.oldest_secs) == (True, 0, 0.0)
        bench.hold(*range(8), data=BIG)
        bench.clock.advance(3)
        bench.hold(8, data=BIG)
        assert (bench.writer.is_idle, bench.writer.waiting, bench.writer.oldest_secs) == (False, 9, 3.0)
        full = [bench.writer.is_full]
        bench.hold(9, data=BIG)
        full.append(bench.writer.is_full)
        assert full == [False, True]
        bench.writer.flush()
        assert (bench.writer.is_full, bench.writer.is_idle, bench.writer.waiting) == (False, True, 0)

    def test_a_full_writer_does_not_linger(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(file_writer, "LINGER_SECS", 3600.0)
        bench.writer.open()
        bench.hold(*range(9), data=BIG)
        assert bench.on_disk(NEW) == []
        bench.hold(9, data=BIG)
        bench.writer.wait_for_room()
        assert not bench.writer.is_full

    def test_room_is_waited_for_and_no_longer(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        bench.hold(*range(12), data=BIG)
        waiting = threading.Thread(target=bench.writer.wait_for_room)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        bench.writer._write_next(bench.writer._queue)
        bench.writer._write_next(bench.writer._queue)
        waiting.join(0.05)
        assert waiting.is_alive()
        bench.writer._write_next(bench.writer._queue)
        waiting.join(5)  # it looks by itself only every 10 s
        assert not waiting.is_alive()
        assert bench.on_disk(NEW) == [0, 1, 2]

    def test_a_writer_whose_files_are_refused_makes_no_publisher_wait_forever(
        self, bench: Bench, disk: Refusing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_writer, "RETRY_SECS", 0.005)
        disk.error = OSError(5, "no")
        bench.hold(*range(12), data=BIG)
        with pytest.raises(OSError, match="none can be written"):
            bench.writer.wait_for_room()
        with pytest.raises(OSError, match="none can be written"):
            bench.writer.make_some()
        disk.error = None
        bench.writer.make_some()
        assert not bench.writer.is_full

    def test_a_publisher_that_writes_files_itself_frees_a_quarter(self, bench: Bench) -> None:
        bench.hold(*range(12), data=BIG)
        bench.writer.make_some()
        assert bench.on_disk(NEW) == list(range(6))  # the oldest first
        assert bench.writer._bytes <= 75_000

    def test_one_message_that_cannot_be_written_does_not_keep_a_publisher_from_it(self, bench: Bench) -> None:
        Path(f"{bench.box.new}{message_id(0)}.json").write_bytes(b"foreign")
        bench.hold(*range(12), data=BIG)
        bench.writer.make_some()
        assert not bench.writer.is_full

    @pytest.mark.parametrize("durability", DURABILITIES)
    async def test_in_the_bus_publishers_wait_and_none_is_refused(
        self, data_dir: Path, durability: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        defaults = FileWriter.__init__.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, "max_bytes", 50_000)
        async with RelayCore(data_dir, config(durability)) as relay:
            endpoint = await relay.register_endpoint("a.b")
            most = 0
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    for _ in range(20):
                        group.create_task(relay.publish("a.b", "x" * 1000, sender="s"))
                    await asyncio.sleep(0)
                    most = max(most, relay.bus.commits.files._bytes)
            assert relay.depth("a.b") == 400
            if durability == "os":
                assert most <= 50_000 + 20 * 2100
            await relay.idle()
            assert len(os.listdir(endpoint.maildir_path / "new")) == 400


class TestRefused:
    def test_it_stays_pending_is_reported_and_is_tried_again(
        self, bench: Bench, disk: Refusing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_writer, "RETRY_SECS", 0.01)
        disk.error = OSError(5, "no")
        bench.writer.open()
        bench.hold(1, 2)
        wait_until(lambda: bench.box.problem is not None)
        assert bench.box.problem == "files cannot be written: [Errno 5] no"
        wait_until(lambda: disk.tries.count(message_id(1)) > 2)
        assert bench.box.whereabouts(message_id(1)) == {NEW}
        assert orjson.loads(bench.box.read(NEW, message_id(1), limit=100)) == {"n": 1}
        assert not bench.writer.is_idle
        disk.error = None
        wait_until(lambda: bench.writer.is_idle)
        assert bench.on_disk(NEW) == [1, 2]
        assert bench.box.problem is None

    def test_a_message_behind_it_is_written_all_the_same_and_soon(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_writer, "RETRY_SECS", 3600.0)
        taken = Path(f"{bench.box.new}{message_id(1)}.json")
        taken.write_bytes(b"foreign")
        bench.writer.open()
        bench.hold(1)
        wait_until(lambda: bench.box.problem is not None)
        bench.hold(2)
        wait_until(lambda: bench.on_disk(NEW) == [1, 2])
        wait_until(lambda: bench.writer.waiting == 1)
        assert bench.box.problem is not None
        assert "File exists" in bench.box.problem

    def test_it_is_tried_again_although_others_keep_coming(
        self, bench: Bench, disk: Refusing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk.error = OSError(5, "no")
        bench.writer.open()
        bench.hold(0)
        wait_until(lambda: bench.box.problem is not None)
        disk.error = None
        numbers = iter(range(1, 100_000))

        def another_comes() -> bool:
            bench.hold(next(numbers))
            bench.clock.advance(0.1)
            return 0 in bench.on_disk(NEW)

        wait_until(another_comes)

    def test_an_end_is_no_failure(self, bench: Bench, disk: Refusing) -> None:
        disk.error = OSError(5, "no")
        bench.hold(1)
        with pytest.raises(OSError, match="1 messages exist only in the journal"):
            bench.writer.flush()
        bench.box.claim(message_id(1))
        bench.box.complete(message_id(1))
        bench.writer.flush()
        assert bench.box.problem is None
        assert bench.writer.is_idle

    def test_on_a_full_disk_room_is_made_first(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Maildir.write_pending
        bench.room.left = 3

        def full(box: Maildir, message: str) -> None:
            if bench.room.left > 1:
                raise OSError(28, "full")
            original(box, message)

        monkeypatch.setattr(Maildir, "write_pending", full)
        bench.hold(1)
        bench.writer.flush()
        assert bench.on_disk(NEW) == [1]
        bench.room.left = 0
        monkeypatch.setattr(Maildir, "write_pending", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        bench.hold(2)
        with pytest.raises(OSError, match="only in the journal: files cannot be written"):
            bench.writer.flush()

    @pytest.mark.parametrize("part", ["new", "tmp", "."])
    def test_a_removed_directory_is_created_again(self, bench: Bench, part: str) -> None:
        bench.hold(1)
        if part == ".":
            bench.box.destroy()
        else:
            (bench.box.path / part).rmdir()
        bench.writer.flush()
        assert bench.on_disk(NEW) == [1]

    def test_a_file_in_place_of_the_directory_is_left_alone_and_reported(self, bench: Bench) -> None:
        bench.hold(1)
        bench.box.destroy()
        bench.box.path.write_bytes(b"foreign")
        with pytest.raises(OSError, match="only in the journal"):
            bench.writer.flush()
        assert bench.box.path.read_bytes() == b"foreign"
        bench.box.path.unlink()
        bench.writer.flush()
        assert bench.on_disk(NEW) == [1]

    def test_a_foreign_file_with_its_name_is_not_overwritten(self, bench: Bench) -> None:
        taken = Path(f"{bench.box.new}{message_id(1)}.json")
        taken.write_bytes(b"foreign")
        bench.hold(1, 2)
        with pytest.raises(OSError, match=r"1 messages exist only in the journal: .*File exists"):
            bench.writer.flush()
        assert taken.read_bytes() == b"foreign"
        assert bench.on_disk(NEW) == [1, 2]
        assert bench.box.problem is not None
        taken.unlink()
        bench.writer.flush()
        assert orjson.loads(taken.read_bytes()) == {"n": 1}
        assert bench.box.problem is None

    @pytest.mark.parametrize("durability", DURABILITIES)
    async def test_in_the_bus_it_is_handled_once_and_the_foreign_file_stays_until_the_bus_is_stopped(
        self, data_dir: Path, durability: str
    ) -> None:
        handled: list[object] = []

        async def handle(envelope: Envelope) -> None:
            handled.append(envelope.payload)

        async with RelayCore(data_dir, config(durability)) as relay:
            endpoint = await relay.register_endpoint("a.b")
            sent = await relay.publish("a.b", "ours", sender="s")
            taken = endpoint.maildir_path / "new" / f"{sent.message_id}.json"
            try:
                with taken.open("xb") as file:
                    file.write(b"foreign")
            except FileExistsError:
                pytest.skip("the writer was faster")
            await until(lambda: "File exists" in (relay.mailboxes()[0].degraded or ""))
            await relay.idle()
            assert [envelope.payload for envelope in await relay.inbox("a.b")] == ["ours"]
            await relay.subscribe("a.b", handle)
            await until(lambda: handled)
            await relay.idle()
            await until(lambda: relay.mailboxes()[0].degraded is None)
        async with RelayCore(data_dir, config(durability)) as relay:
            await relay.subscribe("a.b", handle)
            await relay.idle()
        assert handled == ["ours"]


class TestFlush:
    def test_what_was_held_before_is_a_file(self, bench: Bench) -> None:
        bench.writer.open()
        for round in range(20):
            bench.hold(*range(50 * round, 50 * round + 50))
            bench.writer.flush()
            assert len(bench.on_disk(NEW)) == 50 * round + 50

    def test_also_what_another_thread_is_writing(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        original = Maildir.write_pending
        entered, may_go = threading.Event(), threading.Event()

        def slow(box: Maildir, message: str) -> None:
            entered.set()
            may_go.wait(30)
            original(box, message)

        monkeypatch.setattr(Maildir, "write_pending", slow)
        bench.hold(1)
        bench.writer.open()
        entered.wait(30)
        flush = threading.Thread(target=bench.writer.flush)
        flush.start()
        flush.join(0.05)
        assert flush.is_alive()
        may_go.set()
        flush.join(30)
        assert bench.on_disk(NEW) == [1]

    def test_also_while_refused_messages_are_tried_again(
        self, bench: Bench, disk: Refusing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread takes the refused messages up again between two files of a flush."""
        disk.error = OSError(5, "no")
        bench.hold(1)
        with pytest.raises(OSError, match="only in the journal"):
            bench.writer.flush()
        bench.hold(2, 3)
        write_next = bench.writer._write_next
        calls = 0

        def meanwhile(queue: Any) -> bool:
            nonlocal calls
            calls += 1
            written = write_next(queue)
            if calls == 2:
                disk.error = None
                bench.writer._try_all(bench.writer._refused)
            return written

        monkeypatch.setattr(bench.writer, "_write_next", meanwhile)
        bench.writer.flush()
        assert bench.on_disk(NEW) == [1, 2, 3]

    def test_a_refused_file_is_an_error_and_the_others_are_written(self, bench: Bench) -> None:
        Path(f"{bench.box.new}{message_id(2)}.json").write_bytes(b"foreign")
        bench.hold(1, 2, 3)
        for _ in range(2):
            with pytest.raises(OSError, match="1 messages exist only in the journal"):
                bench.writer.flush()
        assert bench.on_disk(NEW) == [1, 2, 3]

    def test_closing_writes_everything_or_says_what_is_left(self, bench: Bench, disk: Refusing) -> None:
        bench.writer.open()
        bench.hold(1)
        bench.writer.close()
        assert bench.on_disk(NEW) == [1]
        disk.error = OSError(5, "no")
        bench.hold(2)
        with pytest.raises(OSError, match="only in the journal"):
            bench.writer.close()

    @pytest.mark.parametrize("durability", DURABILITIES)
    async def test_a_stopped_bus_leaves_only_files(self, data_dir: Path, durability: str) -> None:
        async with RelayCore(data_dir, config(durability)) as relay:
            endpoint = await relay.register_endpoint("a.b")
            for number in range(20):
                await relay.publish("a.b", number, sender="s")
        assert len(os.listdir(endpoint.maildir_path / "new")) == 20
        assert all(not path.read_bytes().strip(b"\0") for _, path in segments(data_dir / "journal"))

    @pytest.mark.parametrize("durability", DURABILITIES)
    async def test_a_bus_that_cannot_write_its_files_keeps_the_journal(
        self, data_dir: Path, durability: str, disk: Refusing
    ) -> None:
        async with RelayCore(data_dir, config(durability)) as relay:
            endpoint = await relay.register_endpoint("a.b")
            disk.error = OSError(5, "no")
            for number in range(20):
                await relay.publish("a.b", number, sender="s")
            await relay.idle()
            assert os.listdir(endpoint.maildir_path / "new") == []
        disk.error = None
        async with RelayCore(data_dir, config(durability)) as relay:
            assert [envelope.payload for envelope in await relay.inbox("a.b")] == list(range(20))

"""The journal: lines are kept in order, a failed sync poisons its segment, and no segment is dropped too early."""

from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.journal.journal import Durability, Journal, sync_file_system
from relay_core.journal.segment import HEADER, encode_op, encode_record, frame_lines, read_segment, segments

LINES = [encode_record(f"id{number}", [("new", "box", f"id{number}", b'{"n":%d}' % number)]) for number in range(4)]
RECORDS = [orjson.loads(line) for line in LINES]
GONE = encode_op("gone", "box", "id1")
DATA = frame_lines([HEADER, *LINES], 1)
"""The bytes of a first segment with these lines."""


def start(directory: Path, durability: Durability = "fsync", **options: Any) -> Journal:
    journal = Journal(directory / "journal", durability, **options)
    journal.open()
    return journal


def read(journal: Journal) -> list[dict[str, Any]]:
    return [record for sequence, path in segments(journal.directory) for record in read_segment(sequence, path)]


def names(journal: Journal) -> list[int]:
    return [sequence for sequence, _ in segments(journal.directory)]


@pytest.mark.parametrize("durability", ["fsync", "os"])
class TestLines:
    def test_what_was_appended_is_read_in_order(self, tmp_path: Path, durability: Durability) -> None:
        journal = start(tmp_path, durability)
        journal.append(LINES[:1])
        journal.append(LINES[1:3])
        journal.append([GONE])
        assert read(journal) == [*RECORDS[:3], orjson.loads(GONE)]
        journal.close()

    def test_a_journal_that_is_opened_again_goes_on_in_a_new_segment(
        self, tmp_path: Path, durability: Durability
    ) -> None:
        journal = Journal(tmp_path / "journal", durability)
        for line in LINES:
            journal = start(tmp_path, durability)
            journal.append([line])
            journal.close()
        assert read(journal) == RECORDS
        assert names(journal) == [1, 2, 3, 4]

    def test_segments_are_private(self, tmp_path: Path, durability: Durability) -> None:
        journal = start(tmp_path, durability)
        ((_, path),) = segments(journal.directory)
        assert path.stat().st_mode & 0o777 == 0o600
        assert journal.directory.stat().st_mode & 0o777 == 0o700
        journal.close()

    def test_a_line_that_does_not_fit_leaves_no_trace_and_the_next_line_counts(
        self, tmp_path: Path, durability: Durability
    ) -> None:
        journal = start(tmp_path, durability)
        journal.append(LINES[:1])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                journal.append([LINES[1], b'{"id": "%s"}' % (b"x" * 2_000_000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert read(journal) == RECORDS[:1]
        journal.append(LINES[2:])
        assert read(journal) == [RECORDS[0], *RECORDS[2:]]
        journal.close()

    def test_a_closed_journal_takes_nothing(self, tmp_path: Path, durability: Durability) -> None:
        journal = start(tmp_path, durability)
        journal.close()
        with pytest.raises(OSError, match="closed"):
            journal.append(LINES)
        assert read(journal) == []


class TestSequence:
    def test_a_sequence_is_never_used_again(self, tmp_path: Path) -> None:
        (tmp_path / "journal").mkdir()
        (tmp_path / "journal" / "0000000000000041.log").touch()
        for newest in (42, 43):
            journal = start(tmp_path)
            journal.checkpoint(journal.sequence)
            assert names(journal) == [newest]
            journal.close()


class TestSync:
    def test_it_syncs_the_segment_with_every_line(self, tmp_path: Path) -> None:
        seen: list[bytes] = []

        def fdatasync(fd: int) -> None:
            seen.append(os.pread(fd, 10_000, 0).rstrip(b"\0"))
            os.fdatasync(fd)

        journal = start(tmp_path, fdatasync=fdatasync)
        journal.append(LINES)
        journal.sync()
        assert seen == [DATA]
        journal.close()

    def test_a_failed_sync_is_never_tried_again_on_the_same_segment(self, tmp_path: Path) -> None:
        synced: list[int] = []
        failing = True

        def fdatasync(fd: int) -> None:
            synced.append(os.fstat(fd).st_ino)
            if failing:
                raise OSError(errno.EIO, "no")

        journal = start(tmp_path, fdatasync=fdatasync)
        for _ in range(3):
            journal.append(LINES[:1])
            with pytest.raises(OSError, match="no"):
                journal.sync()
        failing = False
        journal.append(LINES[1:])
        journal.sync()
        assert len(set(synced)) == 4
        assert names(journal) == [1, 2, 3, 4]
        assert synced[-1] == segments(journal.directory)[-1][1].stat().st_ino
        journal.close()

    def test_a_segment_that_cannot_be_begun_is_tried_again(self, tmp_path: Path) -> None:
        """A disk that fails for a while: the journal goes on as soon as it can."""

        def fdatasync(fd: int) -> None:
            raise OSError(errno.EIO, "no")

        journal = start(tmp_path, fdatasync=fdatasync)
        journal.append(LINES[:1])
        moved = tmp_path / "moved"
        journal.directory.rename(moved)
        with pytest.raises(OSError, match="No such file"):
            journal.sync()
        for _ in range(2):
            with pytest.raises(OSError, match="No such file"):
                journal.append(LINES[1:2])
        moved.rename(journal.directory)
        journal.append(LINES[2:3])
        assert read(journal) == [RECORDS[0], RECORDS[2]]
        assert names(journal) == [1, 2]
        journal.close()

    def test_a_rotation_that_fails_leaves_the_segment_in_use(self, tmp_path: Path) -> None:
        journal = start(tmp_path)
        moved = tmp_path / "moved"
        journal.directory.rename(moved)
        with pytest.raises(OSError, match="No such file"):
            journal.rotate()
        moved.rename(journal.directory)
        journal.append(LINES[:1])
        journal.sync()
        assert read(journal) == RECORDS[:1]
        journal.close()

    def test_a_rotation_syncs_the_lines_that_no_sync_has_covered(self, tmp_path: Path) -> None:
        synced: list[bytes] = []

        def fdatasync(fd: int) -> None:
            synced.append(os.pread(fd, 10_000, 0).rstrip(b"\0"))

        journal = start(tmp_path, fdatasync=fdatasync)
        journal.append(LINES)
        journal.rotate()
        assert synced == [DATA]
        journal.close()

    @pytest.mark.parametrize("sync", ["directory", "lines"])
    def test_lines_are_appended_while_a_rotation_waits_for_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
    ) -> None:
        """The event loop appends, too: it must not wait for a sync."""
        appended: list[bool] = []

        def append_meanwhile(_: object) -> None:
            thread = threading.Thread(target=journal.append, args=(LINES[1:2],))
            thread.start()
            thread.join(10)
            appended.append(not thread.is_alive())

        slow = append_meanwhile if sync == "lines" else os.fdatasync
        journal = start(tmp_path, fdatasync=slow)
        journal.append(LINES[:1])
        if sync == "directory":
            monkeypatch.setattr("relay_core.journal.journal.fsync_directory", append_meanwhile)
        journal.rotate()
        assert appended == [True]
        assert read(journal) == RECORDS[:2]
        journal.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
class TestRoom:
    def test_unreserved_space_ahead_of_the_lines_is_freed_but_not_held_space(
        self, tmp_path: Path, durability: Durability
    ) -> None:
        journal = start(tmp_path, durability)
        journal.append(LINES, hold=1000)
        ((_, path),) = segments(journal.directory)
        assert path.stat().st_size > 60_000
        assert journal.make_room()
        assert path.stat().st_size == len(DATA) + 1000 + 32 * 1024  # for ends of messages
        assert not journal.make_room()
        journal.release()
        assert journal.make_room()
        journal.append([GONE])
        assert read(journal) == [*RECORDS, orjson.loads(GONE)]
        journal.close()

    def test_a_sequence_that_is_known_from_elsewhere_is_not_used_again(
        self, tmp_path: Path, durability: Durability
    ) -> None:
        journal = Journal(tmp_path / "journal", durability)
        journal.open(after=41)
        assert names(journal) == [42]
        journal.close()

    def test_nothing_is_left_if_there_is_no_room_for_a_new_segment_at_the_end(
        self, tmp_path: Path, durability: Durability
    ) -> None:
        journal = start(tmp_path, durability)
        journal.append(LINES)
        journal.checkpoint(journal.sequence, closing=True)
        assert names(journal) == []
        assert [sequence for sequence, _ in journal.closed.segments()] == [1]
        with pytest.raises(OSError, match="closed"):
            journal.append(LINES)


class TestForgetting:
    def test_a_segment_is_full_at_its_size(self, tmp_path: Path) -> None:
        journal = start(tmp_path, segment_bytes=150)
        full = []
        for lines in (LINES[:1], LINES[1:]):
            journal.append(lines)
            full.append(journal.full)
        journal.rotate()
        full.append(journal.full)
        assert full == [False, True, False]
        journal.close()

    def test_a_checkpoint_removes_old_segments_after_the_file_system_is_synced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = start(tmp_path)
        for line in LINES:
            journal.append([line])
            journal.rotate()
        there: list[list[int]] = []

        def watched(path: Path) -> None:
            there.append(names(journal))
            sync_file_system(path)

        monkeypatch.setattr("relay_core.journal.journal.sync_file_system", watched)
        journal.append(LINES[:1])
        journal.checkpoint(journal.sequence)
        assert there == [[1, 2, 3, 4, 5]]
        assert names(journal) == [5]
        assert read(journal) == RECORDS[:1]
        journal.close()

    def test_a_checkpoint_that_fails_keeps_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        journal = start(tmp_path)
        journal.append(LINES)
        journal.rotate()

        def refused(path: Path) -> None:
            raise OSError(errno.EIO, "no")

        monkeypatch.setattr("relay_core.journal.journal.sync_file_system", refused)
        with pytest.raises(OSError, match="no"):
            journal.checkpoint(journal.sequence)
        assert read(journal) == RECORDS
        journal.close()

    def test_with_os_nothing_is_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(path: Path) -> None:
            raise AssertionError("os does not promise that")

        monkeypatch.setattr("relay_core.journal.journal.sync_file_system", refused)
        journal = start(tmp_path, "os")
        for line in LINES:
            journal.append([line])
            journal.rotate()
        journal.checkpoint(journal.sequence)
        assert names(journal) == [5]
        journal.close()

    def test_a_checkpoint_keeps_a_segment_that_was_begun_after_it(self, tmp_path: Path) -> None:
        journal = start(tmp_path)
        journal.append(LINES[:1])
        journal.rotate()
        present = journal.sequence
        journal.append(LINES[1:2])
        journal.rotate()
        journal.checkpoint(present)
        assert read(journal) == RECORDS[1:2]
        journal.close()

    @pytest.mark.parametrize("durability", ["os", "fsync"])
    def test_a_rotation_forgets_nothing(self, tmp_path: Path, durability: Durability) -> None:
        journal = start(tmp_path, durability)
        for line in LINES:
            journal.append([line])
            journal.rotate()
        assert read(journal) == RECORDS
        journal.close()

    def test_a_file_system_that_is_not_there_cannot_be_synced(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            sync_file_system(tmp_path / "none")

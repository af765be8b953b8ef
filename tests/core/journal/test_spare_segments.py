"""A segment that is no longer needed becomes the next one, and nothing of it is ever read as the new one's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.journal.journal import Durability, Journal
from relay_core.journal.segment import HEADER, encode_record, frame_lines, read_segment, segment_path, segments

MIB = 1024 * 1024


def lines(name: str, count: int) -> list[bytes]:
    """Return lines of 1,000 bytes: those of two segments begin at the same offsets."""
    empty = len(encode_record(f"{name}0000", [])) + len('"message":{"x":""},')
    padding = {"x": "x" * (1000 - empty)}
    return [encode_record(f"{name}{number:04}", [], message=padding) for number in range(count)]


OLD, NEW = lines("old", 1200), lines("new", 40)
RECORDS = [orjson.loads(line) for line in NEW]


def start(directory: Path, durability: Durability = "fsync", *, kept: int = 0, **options: Any) -> Journal:
    journal = Journal(directory / "journal", durability, **options)
    journal.closed.max_bytes = kept
    journal.open()
    return journal


def retire(journal: Journal, written: list[bytes]) -> tuple[int, int]:
    """Fill the present segment, checkpoint it, and return its number and its inode."""
    sequence = journal.sequence
    journal.append(written)
    inode = present(journal).stat().st_ino
    journal.rotate()
    journal.checkpoint(journal.sequence)
    return sequence, inode


def present(journal: Journal) -> Path:
    return segment_path(journal.directory, journal.sequence)


def read(journal: Journal) -> list[dict[str, Any]]:
    return [record for sequence, path in segments(journal.directory) for record in read_segment(sequence, path)]


def spares(journal: Journal) -> list[int]:
    return [sequence for sequence, _ in journal.closed.spares.all()]


@pytest.fixture(params=["fsync", "os"])
def reused(tmp_path: Path, request: pytest.FixtureRequest) -> Journal:
    """Return a journal whose present segment was the file of another one."""
    journal = start(tmp_path, request.param)
    _, inode = retire(journal, OLD)
    journal.rotate()
    journal.checkpoint(journal.sequence)
    assert present(journal).stat().st_ino == inode
    return journal


class TestReuse:
    def test_it_takes_lines_in_the_space_of_the_old_ones(self, reused: Journal) -> None:
        before = present(reused).stat()
        reused.append(NEW[:1])
        reused.append(NEW[1:], hold=5000)
        reused.sync()
        assert read(reused) == RECORDS
        after = present(reused).stat()
        assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
        reused.close()

    def test_before_its_first_line_it_is_empty_and_is_not_kept_but_spared_again(self, reused: Journal) -> None:
        assert read(reused) == []
        inode = present(reused).stat().st_ino
        reused.closed.max_bytes = 64 * MIB
        reused.rotate()
        reused.checkpoint(reused.sequence)
        assert reused.closed.segments() == []
        reused.rotate()
        assert present(reused).stat().st_ino == inode
        reused.close()

    def test_what_is_kept_of_it_ends_with_its_own_lines(self, reused: Journal) -> None:
        reused.closed.max_bytes = 64 * MIB
        sequence, _ = retire(reused, NEW)
        ((kept, path),) = reused.closed.segments()
        assert kept == sequence
        assert path.read_bytes() == frame_lines([HEADER, *NEW], sequence)
        reused.close()

    def test_it_grows_beyond_the_old_file(self, reused: Journal) -> None:
        for _ in range(3):
            reused.append(OLD)
        assert len(read(reused)) == 3 * len(OLD)
        reused.close()

    def test_on_a_full_disk_its_space_ahead_is_freed(self, reused: Journal) -> None:
        reused.append(NEW)
        assert reused.make_room()
        assert present(reused).stat().st_size < 100_000
        reused.append(NEW)
        assert read(reused) == RECORDS * 2
        reused.close()


class TestStaleLines:
    def test_an_old_line_that_follows_the_new_ones_is_not_read(self, reused: Journal) -> None:
        """The zero byte is lost; the old line begins exactly where the new ones end, and is whole."""
        reused.append(NEW)
        stale = frame_lines([HEADER, *OLD], 1)
        end = len(frame_lines([HEADER, *NEW], reused.sequence))
        assert stale[end - 1 : end] == b"\n"
        with present(reused).open("r+b") as file:
            file.seek(end)
            assert file.read(2) == b"\0" + stale[end + 1 : end + 2]
            file.seek(end)
            file.write(stale[end : end + 1])
        assert read(reused) == RECORDS
        reused.close()

    def test_after_a_power_loss_any_blocks_may_be_the_old_ones(self, tmp_path: Path) -> None:
        stale, fresh = frame_lines([HEADER, *OLD], 1), frame_lines([HEADER, *NEW], 2) + b"\0"
        path = tmp_path / "segment"
        for start in range(0, len(fresh), 512):
            for lost in (512, 4096):
                path.write_bytes(
                    fresh[:start] + stale[start : start + lost] + (fresh + stale[len(fresh) :])[start + lost :]
                )
                found = list(read_segment(2, path))
                assert found == RECORDS[: len(found)]
                assert len(found) >= fresh[:start].count(b"\n") - 1

    @pytest.mark.parametrize("durability", ["fsync", "os"])
    def test_a_spare_of_another_process_is_removed(self, tmp_path: Path, durability: Durability) -> None:
        """In a backup it may hold lines of a segment that was not copied, whose number is used again."""
        journal = start(tmp_path, durability)
        retire(journal, OLD)
        ((_, spare),) = journal.closed.spares.all()
        journal.close()
        spare.write_bytes(frame_lines([HEADER, *OLD], journal.sequence + 1))
        journal = start(tmp_path, durability)
        assert spares(journal) == []
        assert present(journal).stat().st_size == 0
        journal.close()


class TestChoice:
    def test_one_that_exceeds_the_size_of_those_kept_is_spared(self, tmp_path: Path) -> None:
        journal = start(tmp_path, kept=2 * MIB)
        _, first = retire(journal, OLD)
        retire(journal, OLD)
        assert ([sequence for sequence, _ in journal.closed.segments()], spares(journal)) == ([2], [1])
        journal.rotate()
        assert present(journal).stat().st_ino == first
        assert spares(journal) == []
        journal.close()

    def test_one_that_is_too_old_is_removed(self, tmp_path: Path) -> None:
        journal = start(tmp_path, kept=64 * MIB)
        retire(journal, OLD)
        os.utime(journal.closed.segments()[0][1], (0, 0))
        assert journal.closed.expire() == 1
        assert (journal.closed.segments(), spares(journal)) == ([], [])
        journal.close()

    def test_one_spare_is_enough(self, tmp_path: Path) -> None:
        journal = start(tmp_path)
        for _ in range(3):
            journal.append(OLD)
            journal.rotate()
        journal.checkpoint(journal.sequence)
        assert spares(journal) == [1]
        assert len(os.listdir(journal.directory)) == 2
        journal.close()

    def test_a_short_one_is_removed(self, tmp_path: Path) -> None:
        journal = start(tmp_path, "os")
        retire(journal, NEW)
        assert spares(journal) == []
        journal.close()

    def test_one_with_a_second_name_is_left_alone(self, tmp_path: Path) -> None:
        journal = start(tmp_path)
        retire(journal, OLD)
        backup = tmp_path / "backup"
        ((_, spare),) = journal.closed.spares.all()
        os.link(spare, backup)
        before = backup.read_bytes()
        journal.rotate()
        journal.append(NEW)
        assert backup.read_bytes() == before
        assert read(journal) == RECORDS
        assert spares(journal) == []
        journal.close()

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign"
        foreign.write_bytes(b"x" * MIB)
        journal = start(tmp_path)
        (journal.directory / "0000000000000001.spare").symlink_to(foreign)
        journal.rotate()
        journal.append(NEW)
        assert foreign.read_bytes() == b"x" * MIB
        assert read(journal) == RECORDS
        journal.close()

    def test_no_segment_is_overwritten_by_it(self, tmp_path: Path) -> None:
        journal = start(tmp_path)
        retire(journal, OLD)
        taken = segment_path(journal.directory, journal.sequence + 1)
        taken.write_bytes(b"foreign")
        with pytest.raises(FileExistsError):
            journal.rotate()
        assert taken.read_bytes() == b"foreign"
        journal.close()

    def test_after_a_failed_sync_only_new_files_are_written(self, tmp_path: Path) -> None:
        failing = False

        def fdatasync(fd: int) -> None:
            if failing:
                raise OSError(errno.EIO, "no")

        journal = start(tmp_path, fdatasync=fdatasync)
        _, inode = retire(journal, OLD)
        failing = True
        with pytest.raises(OSError, match="no"):
            journal.sync()
        failing = False
        journal.rotate()
        assert inode not in [path.stat().st_ino for _, path in segments(journal.directory)]
        retire(journal, OLD)
        assert spares(journal) == [1]
        journal.close()

    def test_the_spare_is_the_first_to_give_way_on_a_full_disk(self, tmp_path: Path) -> None:
        journal = start(tmp_path, kept=2 * MIB)
        retire(journal, OLD)
        retire(journal, OLD)
        left = []
        while journal.closed.evict_oldest():
            left.append((len(spares(journal)), len(journal.closed.segments())))
        assert left == [(0, 1), (0, 0)]
        journal.close()

    def test_a_spare_that_is_evicted_meanwhile_is_not_missed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = start(tmp_path)
        retire(journal, OLD)
        link = os.link

        def evicted(*args: Any, **named: Any) -> None:
            journal.closed.evict_oldest()
            link(*args, **named)

        monkeypatch.setattr(os, "link", evicted)
        journal.rotate()
        journal.append(NEW)
        assert read(journal) == RECORDS
        journal.close()

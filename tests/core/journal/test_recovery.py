"""Recovery: whatever a dead process left, the journal's last word on each message holds, and holds again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core.journal.journal import Durability, Journal
from relay_core.journal.recovery import recover
from relay_core.journal.segment import UnknownVersion, encode_record, frame_lines, segments
from relay_core.storage.maildir import CUR, FAILED, NEW, STATES, TMP, Maildir

ID = "01HF0000000000000000000001"
BOX = "0123456789ab"
MESSAGE = {"id": ID, "payload": 1}
BEFORE = {"id": ID, "payload": 1, "replays": 0}
RECORD = {"envelope": MESSAGE, "code": "handler_failed"}
DATA: dict[str, Any] = {"new": MESSAGE, "again": MESSAGE, "failed": RECORD, "gone": None}
TORN = [b"", b"\0" * 50, b'{"id": "01HF0']


class Fixture:
    """A journal and the mailbox it speaks of."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "journal"
        self.directory.mkdir()
        self.box = Maildir(directory / BOX)
        self.box.create(sync=False)

    def journal(self, *segments_of_lines: list[bytes], durability: Durability = "fsync") -> None:
        """Leave a journal behind, as a killed process does."""
        journal = Journal(self.directory, durability)
        journal.open()
        for position, lines in enumerate(segments_of_lines):
            if position:
                journal.rotate()
            journal.append(lines)
        journal.close()

    def recover(self) -> dict[str, Any]:
        """Recover twice; return the contents of the message, which must be the same both times."""
        return self.recover_all().get(ID, {})

    def recover_all(self) -> dict[str, dict[str, Any]]:
        """Recover twice; return the contents of every message."""
        recover(self.directory, self._maildir)
        once, files = self.contents(), self.files()
        recover(self.directory, self._maildir)  # killed before the journal was dropped
        assert self.files() == files, "the second recovery has changed a file"
        assert self.contents() == once
        return once

    def files(self) -> dict[Path, tuple[int, int]]:
        """Return the identity of every file."""
        return {path: (path.stat().st_ino, path.stat().st_ctime_ns) for path in self.box.path.glob("*/*.json")}

    def contents(self) -> dict[str, dict[str, Any]]:
        """Return the contents of the files, by message and state."""
        assert os.listdir(self.box.tmp) == []
        found: dict[str, dict[str, Any]] = {}
        for state in STATES:
            for path in Path(self.box.path, state).iterdir():
                try:
                    content = orjson.loads(path.read_bytes())
                except ValueError:
                    content = "torn"
                found.setdefault(path.stem, {})[state] = content
        return found

    def _maildir(self, name: str) -> Maildir:
        assert name == BOX
        return self.box


@pytest.fixture
def left(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def line(op: str, *, message_id: str = ID) -> bytes:
    data = orjson.dumps(DATA[op]) if DATA.get(op) is not None else None
    return encode_record(message_id, [(op, BOX, message_id, data)])


def situations() -> Iterator[dict[str, Any]]:
    """Yield every combination of files that may be there: none, torn, an older version or the right one."""
    for new, cur, failed in itertools.product(
        (None, "torn", BEFORE, MESSAGE), (None, "torn", BEFORE, MESSAGE), (None, "torn", {"code": "before"}, RECORD)
    ):
        yield {state: what for state, what in ((NEW, new), (CUR, cur), (FAILED, failed)) if what is not None}


def expected(op: str, files: dict[str, Any]) -> dict[str, Any]:
    """Return the expected contents."""
    whole = {state for state, what in files.items() if what != "torn"}
    if op == "gone":
        return {}
    if op == "failed":
        return {FAILED: RECORD}
    if not whole or (op == "again" and whole == {FAILED}):
        return {NEW: MESSAGE}
    right = {state: MESSAGE if state == NEW and state in whole else what for state, what in files.items()}
    if op == "again":
        right.pop(FAILED, None)
    return right


@pytest.mark.parametrize("op", DATA)
def test_each_op_in_each_situation(left: Fixture, op: str) -> None:
    cases = {f"01HF0000000000000000000{number:03d}": files for number, files in enumerate(situations())}
    left.journal([line(op, message_id=message_id) for message_id in cases])
    for number, (message_id, files) in enumerate(cases.items()):
        for state, what in files.items():
            data = TORN[number % len(TORN)] if what == "torn" else orjson.dumps(what)
            Path(left.box.path, state, f"{message_id}.json").write_bytes(data)
    found = left.recover_all()
    for message_id, files in cases.items():
        assert found.get(message_id, {}) == expected(op, files), files


@pytest.mark.parametrize(
    ("ops", "there"),
    [
        (["new", "gone"], {}),
        (["new", "failed"], {FAILED: RECORD}),
        (["new", "failed", "again"], {NEW: MESSAGE}),
        (["new", "failed", "again", "gone"], {}),
        (["new", "failed", "again", "failed"], {FAILED: RECORD}),
        (["failed", "gone"], {}),
        (["new", "begun"], {CUR: MESSAGE}),
        (["new", "begun", "back"], {NEW: MESSAGE}),
        (["new", "begun", "back", "begun"], {CUR: MESSAGE}),
        (["new", "begun", "gone"], {}),
        (["new", "begun", "failed"], {FAILED: RECORD}),
        (["new", "begun", "failed", "again"], {NEW: MESSAGE}),
        (["begun"], {}),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("split", [False, True], ids=["one segment", "a segment each"])
def test_the_last_word_on_a_message_holds(left: Fixture, ops: list[str], there: dict[str, Any], split: bool) -> None:
    lines = [line(op) for op in ops]
    left.journal(*([line] for line in lines) if split else [lines])
    assert left.recover() == there


@pytest.mark.parametrize(
    ("ops", "files", "there"),
    [
        (["begun"], (NEW,), (CUR,)),
        (["begun"], (CUR,), (CUR,)),
        (["begun"], (FAILED,), (FAILED,)),
        (["begun", "back"], (NEW,), (NEW,)),
        (["begun", "back"], (CUR,), (CUR,)),  # it was claimed again, and a kill left no word of that
    ],
)
def test_a_message_that_was_begun_is_not_offered_again(
    left: Fixture, ops: list[str], files: tuple[str, ...], there: tuple[str, ...]
) -> None:
    """The segment that held the message itself is gone."""
    for state in files:
        Path(left.box.path, state, f"{ID}.json").write_bytes(orjson.dumps(MESSAGE))
    left.journal([line(op) for op in ops])
    assert left.recover() == dict.fromkeys(there, MESSAGE)


def test_a_bad_line_ends_its_segment_and_no_other(left: Fixture) -> None:
    left.journal([line("new")], [line("failed")], [line("gone")])
    path = segments(left.directory)[1][1]
    path.write_bytes(b"x" + path.read_bytes())
    assert left.recover() == {}
    left.journal([line("new"), line("gone")])
    path = segments(left.directory)[-1][1]
    path.write_bytes(path.read_bytes().replace(b'"gone"', b'"gnoe"'))
    assert left.recover() == {NEW: MESSAGE}


def test_every_record_is_noted(left: Fixture) -> None:
    lines = [
        encode_record(ID, [("new", BOX, ID, orjson.dumps(MESSAGE))], dedupe="s one", result={"n": 1}),
        encode_record(ID, [("gone", BOX, ID, None)]),
        encode_record(ID, [], dedupe="s two", result={"n": 2}),
    ]
    left.journal(lines)
    noted: list[dict[str, Any]] = []
    recover(left.directory, lambda _: left.box, noted.append)
    assert [record.get("dedupe") for record in noted] == ["s one", None, "s two"]


def test_the_copies_of_one_publish_have_their_own_ends(left: Fixture) -> None:
    """They share a record and a message id; each mailbox has its own last word."""
    other = Maildir(left.box.path.with_name("ba9876543210"))
    boxes = {BOX: left.box, other.path.name: other}
    ops = [("new", name, ID, orjson.dumps({"subject": name})) for name in boxes]
    left.journal([encode_record(ID, ops, message=MESSAGE), line("begun")], [line("gone")])
    for _ in range(2):
        recover(left.directory, boxes.__getitem__)
        assert left.contents() == {}
        assert orjson.loads(other.read(NEW, ID, limit=1000)) == {**MESSAGE, "subject": other.path.name}
        assert other.whereabouts(ID) == {NEW}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_message_that_was_begun_before_it_had_a_file_is_parked(left: Fixture, durability: Durability) -> None:
    left.journal([line("new"), line("begun")], durability=durability)
    assert left.recover() == {CUR: MESSAGE}


def test_a_segment_of_another_version_is_refused_before_any_file_is_changed(left: Fixture) -> None:
    left.journal([line("new")], [line("new", message_id=f"{ID[:-1]}2")])
    sequence, path = segments(left.directory)[1]
    path.write_bytes(frame_lines([line("gone")], sequence))
    with pytest.raises(UnknownVersion):
        recover(left.directory, lambda _: left.box)
    assert left.contents() == {}


def test_a_mailbox_whose_directory_is_lost_is_made_again(left: Fixture) -> None:
    left.journal([line("new")])
    left.box.destroy()
    assert left.recover() == {NEW: MESSAGE}


def test_leftovers_of_a_killed_writer_in_tmp_do_not_block_recovery(left: Fixture) -> None:
    left.box = Maildir(left.box.path, unnamed=False)
    Path(left.box.path, TMP, f"{ID}.json").write_bytes(b"ha")
    left.journal([line("new")])
    assert left.recover() == {NEW: MESSAGE}


def test_a_foreign_file_in_the_place_of_a_message_is_left_to_the_mailbox(left: Fixture) -> None:
    os.symlink("/etc/hostname", f"{left.box.new}{ID}.json")
    left.journal([line("new")])
    recover(left.directory, lambda _: left.box)
    assert os.path.islink(f"{left.box.new}{ID}.json")


def test_a_message_that_spans_lines_breaks_no_other(left: Fixture) -> None:
    """Others may lay out the files they drop as they like; the journal keeps one line per transaction."""
    pretty = orjson.dumps({"envelope": MESSAGE}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    other = encode_record(ID, [("failed", BOX, ID, pretty)])
    left.journal([other, line("gone")])
    assert left.recover() == {}
    left.journal([other])
    assert left.recover() == {FAILED: {"envelope": MESSAGE}}


def test_a_disk_that_refuses_recovered_files_is_an_error(left: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise OSError("no")

    left.journal([line("new")])
    monkeypatch.setattr("relay_core.journal.recovery.sync_file_system", refused)
    with pytest.raises(OSError, match="no"):
        recover(left.directory, lambda _: left.box)

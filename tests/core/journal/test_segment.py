"""Segments, format version 2: the header, records by offset, and reading that stops at the first bad line."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.core import RelayCore
from relay_core.errors import StorageError
from relay_core.journal.journal import Journal
from relay_core.journal.segment import (
    HEADER,
    UnknownVersion,
    encode_op,
    encode_record,
    frame_lines,
    read_ops,
    read_record,
    read_segment,
    segments,
)
from relay_core.storage.maildir import NEW
from tests.kit.bus import a_bus, config

LINES = [encode_record(f"id{number}", [("new", "box", f"id{number}", b'{"n":%d}' % number)]) for number in range(4)]
RECORDS = [orjson.loads(line) for line in LINES]
DATA = frame_lines([HEADER, *LINES], 1)
"""The bytes of a first segment with these lines."""


def whole(data: bytes) -> int:
    """Return how many records, without the header, end within some bytes of the segment."""
    return max(0, data.count(b"\n") - 1)


def frame(line: bytes, sequence: int = 1) -> bytes:
    """Return a line as the description says."""
    return b"%08x %s\n" % (crc32(line, sequence), line)


class TestFormat:
    def test_a_segment_is_a_header_and_its_records(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path / "journal", "fsync")
        journal.open()
        journal.append(LINES[:1])
        journal.append(LINES[1:])
        journal.rotate()
        journal.append(LINES[:1])
        journal.close()
        (_, first), (_, second) = segments(journal.directory)
        assert first.read_bytes().rstrip(b"\0") == b"".join(map(frame, (b'{"journal":2}', *LINES))) == DATA
        assert second.read_bytes().rstrip(b"\0") == frame(b'{"journal":2}', 2) + frame(LINES[0], 2)

    def test_a_record_has_the_described_fields(self) -> None:
        plain = orjson.loads(encode_record("id", [("gone", "box", "id", None)]))
        assert plain == {"id": "id", "ops": [["gone", "box", "id"]]}
        full = encode_record(
            "id",
            [("new", "box", "id", b'{"subject":"a"}')],
            message={"payload": 1},
            dedupe="s d",
            result={"messageId": "id"},
        )
        assert orjson.loads(full) == {
            "id": "id",
            "ops": [["new", "box", "id", {"subject": "a"}]],
            "message": {"payload": 1},
            "dedupe": "s d",
            "result": {"messageId": "id"},
        }
        assert orjson.loads(encode_record("id", [], dedupe="s d")) == {
            "id": "id",
            "ops": [],
            "dedupe": "s d",
            "result": None,
        }

    @pytest.mark.parametrize("op", ["begun", "back", "gone"])
    def test_an_op_without_data_is_the_same_record(self, op: str) -> None:
        assert encode_op(op, "box", "id") == encode_record("id", [(op, "box", "id", None)])

    def test_the_copies_of_a_publish_share_its_message(self) -> None:
        record = orjson.loads(
            encode_record(
                "id",
                [("new", "one", "id", b'{"budget":1}'), ("again", "two", "id", b'{"budget":2}')],
                message={"id": "id", "payload": [1, 2]},
            )
        )
        assert list(read_ops(record)) == [
            ("new", "one", "id", {"id": "id", "payload": [1, 2], "budget": 1}),
            ("again", "two", "id", {"id": "id", "payload": [1, 2], "budget": 2}),
        ]

    def test_a_dead_letter_beside_them_does_not(self) -> None:
        record = orjson.loads(
            encode_record("id", [("failed", "box", "other", b'{"code":"x"}'), ("gone", "box", "id", None)], message={})
        )
        assert list(read_ops(record)) == [("failed", "box", "other", {"code": "x"}), ("gone", "box", "id", None)]

    def test_a_message_laid_out_over_lines_is_one_line_here(self, tmp_path: Path) -> None:
        message = {"a": "1\n2", "b": [1, {"c": None}]}
        laid_out = orjson.dumps(message, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        path = tmp_path / "segment"
        path.write_bytes(frame_lines([HEADER, encode_record("id", [("new", "box", "id", laid_out)]), LINES[0]], 1))
        assert list(read_segment(1, path)) == [{"id": "id", "ops": [["new", "box", "id", message]]}, RECORDS[0]]

    def test_only_segments_are_taken_for_segments(self, tmp_path: Path) -> None:
        for name in ("0000000000000003.log", "12.log", "x.log", "1.log.tmp", ".log"):
            (tmp_path / name).touch()
        assert [sequence for sequence, _ in segments(tmp_path)] == [3, 12]
        assert segments(tmp_path / "none") == []


class TestVersion:
    @pytest.mark.parametrize(
        "first",
        [b'{"id":"x","ops":[],"sync":true}', b'{"done":"x"}', b'{"journal":1}', b'{"journal":3}', b'{"journal":"2"}'],
    )
    def test_a_segment_of_another_version_is_refused(self, tmp_path: Path, first: bytes) -> None:
        path = tmp_path / "segment"
        path.write_bytes(frame_lines([first, *LINES], 1))
        with pytest.raises(UnknownVersion, match="written by another version of Relay: start that version once"):
            list(read_segment(1, path))

    @pytest.mark.parametrize(
        "data", [b"", b"\0" * 5000, DATA[:10], b"x\n" + DATA], ids=["empty", "zeros", "torn", "bad"]
    )
    def test_a_segment_without_a_whole_header_has_no_records(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "segment"
        path.write_bytes(data)
        assert list(read_segment(1, path)) == []

    async def test_a_bus_does_not_start_on_it_and_leaves_it_alone(self, data_dir: Path) -> None:
        async with a_bus(data_dir, None, endpoints=["a.b"]):
            pass
        path = data_dir / "journal" / "0000000000000900.log"
        data = frame_lines([b'{"id":"x","ops":[["gone","b","x"]]}'], 900)
        path.write_bytes(data)
        with pytest.raises(StorageError, match=r"900\.log was written by another version of Relay"):
            async with RelayCore(data_dir, config()):
                pass
        assert path.read_bytes() == data
        path.unlink()
        async with a_bus(data_dir, None) as relay:  # and nothing is left behind that keeps the next from starting
            assert (await relay.publish("a.b", 1, sender="s")).delivered_to == 1

    async def test_kept_segments_of_another_version_are_skipped(self, data_dir: Path) -> None:
        async with a_bus(data_dir, None, endpoints=["a.b"]):
            pass
        kept = data_dir / "journal" / "kept"
        kept.mkdir(exist_ok=True)
        (kept / "0000000000000000.log").write_bytes(frame_lines([b'{"id":"x","ops":[["gone","b","x"]]}'], 0))
        (data_dir / "index.db").unlink()
        async with a_bus(data_dir, None) as relay:
            assert (await relay.publish("a.b", 1, sender="s")).delivered_to == 1


class TestOffsets:
    def test_a_record_is_found_by_its_segment_and_offset(self, tmp_path: Path) -> None:
        path = tmp_path / "segment"
        path.write_bytes(DATA + b"\0" * 100)
        offset = 0
        for line, record in zip(DATA.splitlines(keepends=True), [{"journal": 2}, *RECORDS], strict=True):
            assert read_record(1, path, offset) == record
            assert read_record(2, path, offset) is None
            offset += len(line)

    def test_any_other_offset_has_none(self, tmp_path: Path) -> None:
        path = tmp_path / "segment"
        path.write_bytes(DATA + b"\0" * 100)
        starts = {0} | {position + 1 for position, byte in enumerate(DATA) if byte == ord("\n")}
        for offset in range(len(DATA) + 200):
            assert (read_record(1, path, offset) is not None) == (offset in starts - {len(DATA)})


class TestDamage:
    def test_every_truncation_gives_the_records_before_it(self, tmp_path: Path) -> None:
        path = tmp_path / "segment"
        for length in range(len(DATA) + 1):
            path.write_bytes(DATA[:length])
            assert list(read_segment(1, path)) == RECORDS[: whole(DATA[:length])]

    def test_zeros_end_the_reading(self, tmp_path: Path) -> None:
        """Blocks that were allocated but not written are zero after a power loss."""
        path = tmp_path / "segment"
        for length in range(len(DATA)):
            path.write_bytes(DATA[:length] + bytes(len(DATA) - length) + b"\0" * 5000)
            assert list(read_segment(1, path)) == RECORDS[: whole(DATA[:length])]

    @pytest.mark.parametrize("bit", range(8))
    def test_every_flipped_bit_stops_reading_at_its_line(self, tmp_path: Path, bit: int) -> None:
        path = tmp_path / "segment"
        for position in range(len(DATA)):
            flipped = bytearray(DATA)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            assert list(read_segment(1, path)) == RECORDS[: whole(DATA[:position])], position

    @given(junk=st.binary(max_size=200), at=st.integers(1, 4))
    def test_reading_stops_at_the_first_bad_line(
        self, tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int
    ) -> None:
        lines = DATA.splitlines(keepends=True)
        path = tmp_path_factory.getbasetemp() / "junk"
        path.write_bytes(b"".join(lines[:at]) + junk + b"\n" + b"".join(lines[at:]))
        assert list(read_segment(1, path)) == RECORDS[: at - 1]

    def test_a_line_of_another_sequence_is_stale(self, tmp_path: Path) -> None:
        path = tmp_path / "segment"
        path.write_bytes(DATA)
        assert list(read_segment(2, path)) == []
        path.write_bytes(frame_lines([HEADER, LINES[0]], 2) + DATA)
        assert list(read_segment(2, path)) == RECORDS[:1]


async def test_a_publish_is_one_record_with_one_payload_for_all_its_targets(data_dir: Path) -> None:
    async with a_bus(data_dir, None, endpoints=["a.b", "a.c", "a.d"]) as relay:
        sent = await relay.publish("a.*", "only once", sender="s")
        records = [
            record
            for sequence, path in segments(relay.bus.journal.directory)
            for record in read_segment(sequence, path)
            if record["id"] == sent.message_id
        ]
        (record,) = records
        assert orjson.dumps(record).count(b"only once") == 1
        files = {
            mailbox.hash: mailbox.maildir.read(NEW, sent.message_id, limit=10_000) for mailbox in relay.bus.mailboxes
        }
        assert {mailbox: data for _, mailbox, _, data in read_ops(record)} == {
            mailbox: orjson.loads(data) for mailbox, data in files.items()
        }

"""The format of a journal segment, version 2.

A segment is ``journal/{sequence}.log``: lines of ``crc32-of-json SP json LF``. The checksum is seeded with the
sequence, so stale bytes never pass for a record. The first line is the header, every other line is one record::

    {"journal": 2}
    {"id": ..., "ops": [[op, mailbox, message, data?], ...], "message"?: {...}, "dedupe"?: ..., "result"?: {...}}

Ops: ``new`` (the message is in new/), ``again`` (the same, and no longer in failed/), ``failed`` (its record is in
failed/ and nowhere else), ``gone`` (it is nowhere); and for a message in new/, ``begun`` (it was claimed and is in
cur/) and ``back`` (it was claimed and is waiting again). The last op of a message describes its state.

The copies of one publish share ``message``; the data of each ``new`` or ``again`` beside it is only what differs, its
subject and its budget. ``dedupe`` and ``result`` are what a retry of the publish is answered with; a later record with
the same ``dedupe`` and no ``result`` withdraws that answer.

A record is found again by its segment and the offset of its line (`read_record`). Reading stops at the first bad line:
the lines after it were never acknowledged. A zero byte or the end of the file follows the last line. Behind it there
may be anything: the file of an older segment is used again (spare_segments.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import orjson

JournalOp: TypeAlias = tuple[str, str, str, bytes | None]
"""Op, mailbox, message id, and the message's bytes if the op writes a file."""

VERSION = 2
FRAME_BYTES = 10
"""Bytes of a line that are not its JSON."""
HEADER = orjson.dumps({"journal": VERSION})


class UnknownVersion(OSError):
    """A segment that another version of Relay has written."""


def encode_record(
    message_id: str,
    ops: Iterable[JournalOp],
    *,
    message: dict[str, Any] | None = None,
    dedupe: str | None = None,
    result: dict[str, Any] | None = None,
) -> bytes:
    """Return the JSON of a record."""
    record: dict[str, Any] = {
        "id": message_id,
        "ops": [
            [op, mailbox, id] if data is None else [op, mailbox, id, _on_one_line(data)]
            for op, mailbox, id, data in ops
        ],
    }
    if message is not None:
        record["message"] = message
    if dedupe is not None:
        record["dedupe"] = dedupe
        record["result"] = result
    return orjson.dumps(record)


def encode_op(op: str, mailbox: str, message_id: str) -> bytes:
    """Return the JSON of a record with one op that has no data."""
    return b'{"id":"%b","ops":[["%b","%b","%b"]]}' % (
        id := message_id.encode(),
        op.encode(),
        mailbox.encode(),
        id,
    )


def read_ops(record: dict[str, Any]) -> Iterator[tuple[str, str, str, dict[str, Any] | None]]:
    """Yield the ops of a record, each with its message's whole content, if it has one."""
    shared = record.get("message")
    for op, mailbox, message_id, *data in record["ops"]:
        if not data:
            yield op, mailbox, message_id, None
        elif shared is not None and op != "failed":
            yield op, mailbox, message_id, shared | data[0]
        else:
            yield op, mailbox, message_id, data[0]


def _on_one_line(data: bytes) -> orjson.Fragment:
    # Our own messages are one line already; a dropped file may have any layout. No JSON string holds a raw line end.
    return orjson.Fragment(data.replace(b"\n", b" "))


def frame_lines(lines: Iterable[bytes], sequence: int) -> bytes:
    """Return lines as they are written to the segment with this sequence number."""
    return b"".join([b"%08x %s\n" % (crc32(line, sequence), line) for line in lines])


def read_segment(sequence: int, path: Path) -> Iterator[dict[str, Any]]:
    """Yield a segment's records up to the first bad line.

    Raises:
        UnknownVersion: if another version of Relay has written it.
    """
    with path.open("rb") as file:
        # Up to the zeros that later lines will overwrite: reading 16 MB of them took half of a start.
        is_first = True
        while file.peek(1)[:1] not in (b"", b"\0"):
            record = _parse_line(file.readline(), sequence)
            if record is None:
                return
            if is_first:
                is_first = False
                if record.get("journal") != VERSION:
                    raise UnknownVersion(
                        f"{path} was written by another version of Relay: start that version once, stop it gracefully, "
                        "then start this one"
                    )
            else:
                yield record


def read_record(sequence: int, path: Path, offset: int) -> dict[str, Any] | None:
    """Return the record whose line begins at an offset of a segment; None if none does."""
    with path.open("rb") as file:
        file.seek(offset)
        return _parse_line(file.readline(), sequence)


def _parse_line(line: bytes, sequence: int) -> dict[str, Any] | None:
    try:
        body = line[9:-1]
        if line[-1:] != b"\n" or line[:9] != b"%08x " % crc32(body, sequence):
            return None
        record: dict[str, Any] = orjson.loads(body)
    except ValueError:
        return None
    return record


def segment_path(directory: Path, sequence: int) -> Path:
    """Return the file of the segment with this sequence number."""
    return directory / f"{sequence:016d}.log"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the segments in a directory, oldest first."""
    return numbered_files(directory, ".log")


def numbered_files(directory: Path, suffix: str) -> list[tuple[int, Path]]:
    """Return the files in a directory that are named by a sequence number, in its order."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted((int(stem), directory / f"{stem}{suffix}") for stem in stems if stem.isdigit())

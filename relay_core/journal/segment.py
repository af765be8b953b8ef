"""The format of a journal segment.

A segment is ``journal/{sequence}.log``: lines of ``crc32-of-json SP json LF``. The checksum is seeded with the
sequence, so stale bytes never pass for a record. A line is one record::

    {"id": ..., "sync": true, "ops": [[op, mailbox, message, data?], ...], "dedupe"?: ..., "result"?: {...}}
    {"done": id}             every file of a transaction without "sync" is written

Ops: ``new`` (the message is in new/), ``again`` (the same, and no longer in failed/), ``failed`` (its record is in
failed/ and nowhere else), ``gone`` (it is nowhere); and for a message in new/, ``begun`` (it was claimed and is in
cur/) and ``back`` (it was claimed and is waiting again).

Reading stops at the first bad line: the lines after it were never acknowledged.
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

FRAME_BYTES = 10
"""Bytes of a line that are not its JSON."""


def transaction_line(
    message_id: str,
    ops: Iterable[JournalOp],
    *,
    sync: bool,
    dedupe: str | None = None,
    result: dict[str, Any] | None = None,
) -> bytes:
    """Return the JSON of a transaction's line."""
    record: dict[str, Any] = {
        "id": message_id,
        "ops": [
            [op, mailbox, message] if data is None else [op, mailbox, message, _on_one_line(data)]
            for op, mailbox, message, data in ops
        ],
    }
    if sync:
        record["sync"] = True
    if dedupe is not None:
        record["dedupe"] = dedupe
        record["result"] = result
    return orjson.dumps(record)


def done_line(message_id: str) -> bytes:
    """Return the JSON of the line that ends a transaction."""
    return orjson.dumps({"done": message_id})


def _on_one_line(data: bytes) -> orjson.Fragment:
    # Our own messages are one line already; a dropped file may have any layout. No JSON string holds a raw line end.
    return orjson.Fragment(data.replace(b"\n", b" "))


def frame_lines(lines: Iterable[bytes], sequence: int) -> bytes:
    """Return lines as they are written to the segment with this sequence number."""
    return b"".join([b"%08x %s\n" % (crc32(line, sequence), line) for line in lines])


def read_segment(sequence: int, path: Path) -> Iterator[dict[str, Any]]:
    """Yield a segment's records up to the first bad line."""
    with path.open("rb") as file:
        # Up to the zeros that later lines will overwrite: reading 16 MB of them took half of a start.
        while file.peek(1)[:1] not in (b"", b"\0"):
            line = file.readline()
            try:
                body = line[9:-1]
                if line[-1:] != b"\n" or int(line[:8], 16) != crc32(body, sequence):
                    return
                yield orjson.loads(body)
            except ValueError:
                return


def segment_path(directory: Path, sequence: int) -> Path:
    """Return the file of the segment with this sequence number."""
    return directory / f"{sequence:016d}.log"


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the segments in a directory, oldest first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(name[:-4]), directory / name) for name in names if name.endswith(".log") and name[:-4].isdigit())

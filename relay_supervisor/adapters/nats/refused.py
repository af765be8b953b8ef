"""Copies of the messages that could not be let in, for whoever wants to know what somebody sends.

1. A copy is on disk before its message is given up, so that nothing vanishes. It is named by its place in the stream:
   one that comes again is not counted again.
2. The newest 100 are kept, each cut off after 64 KiB. The directory is its owner's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from relay_core.storage.atomic_file import atomic_write

DIRECTORY = "refused"
KEPT = 100
_LONGEST = 64 * 1024


def keep_copy(directory: Path, place: str, subject: str, headers: Mapping[str, str], data: bytes, why: str) -> bool:
    """Keep a copy and tell whether it is a new one; blocks.

    Raises:
        StorageError: if the disk refuses.
        OSError: likewise.
    """
    folder = directory / DIRECTORY
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{place}.json"
    if path.exists():
        return False
    copy = {
        "why": why,
        "subject": subject,
        "headers": dict(headers),
        "bytes": len(data),
        "body": data[:_LONGEST].decode(errors="replace"),
    }
    atomic_write(path, orjson.dumps(copy, option=orjson.OPT_INDENT_2), sync=False)
    for old in sorted(folder.glob("*.json"), key=_age)[:-KEPT]:
        old.unlink(missing_ok=True)
    return True


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

"""The files that a bridge keeps.

Relay id: the name of a relay on the streams, created once and kept beside the directories of its adapters. It tells a
relay's own messages from those of others, for all of its bridges, and names its consumers. A data directory that is
copied to another machine takes the name along: two relays with one name would share the incoming messages, so remove
the copy's file.

Position: how far a relay has settled a stream. If its consumer is removed, the next one resumes there.

1. The saved position is the server's, and never ahead of it, so nothing is skipped. It may be behind: messages that
   are sent again are recognised by their dedupe ids.
2. It is valid for one consumer of one stream. A stream that was removed and created again is another one (`made_at`).

Refused: copies of messages that can never be accepted, for operators.

1. A copy is on disk before its message is terminated. Its name is the message's position in the stream, so a message
   that is sent again is not counted again.
2. The newest 100 are kept, each cut after 64 KiB. Only the owner can read the directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import orjson
from pydantic import ValidationError

from relay_core.errors import ConfigError
from relay_core.messages.base import WireModel
from relay_core.messages.subjects import is_subject
from relay_core.storage.atomic_file import atomic_write, fsync_directory, storage_error

ID_FILE = "relay-id"
POSITION = "position.json"
REFUSED = "refused"
COPIES_KEPT = 100
_MOST_COPY_BYTES = 64 * 1024


def relay_id(directory: Path) -> str:
    """Return the relay's name, created if there is none; blocks.

    Raises:
        ConfigError: if the file is invalid.
        StorageError: if it cannot be written.
    """
    path = directory / ID_FILE
    if not path.exists():
        _create_relay_id(path)
    name = path.read_text().strip()
    if not is_subject(name) or "." in name:
        raise ConfigError(f"{path} must hold one subject token: remove it, and the relay gets a new name")
    return name


def _create_relay_id(path: Path) -> None:
    """Write a new name atomically, unless another bridge of this relay is faster."""
    draft = path.with_name(f".{ID_FILE}.{token_hex(8)}")
    atomic_write(draft, f"{token_hex(8)}\n".encode())
    try:
        os.link(draft, path)
        fsync_directory(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        raise storage_error("write", path, error) from error
    finally:
        draft.unlink(missing_ok=True)


class Position(WireModel):
    """A position in a stream."""

    stream: str
    made_at: str
    """Creation time of the stream, as the server gives it."""
    durable: str
    settled: int
    """Sequence number up to which all messages are settled."""


def read_position(directory: Path) -> Position | None:
    """Return the saved position, if there is a valid one; blocks."""
    try:
        return Position.model_validate_json((directory / POSITION).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_position(directory: Path, position: Position) -> None:
    """Save a position; blocks, and raises StorageError."""
    atomic_write(directory / POSITION, orjson.dumps(position.to_wire()))


def keep_copy(directory: Path, place: str, subject: str, headers: Mapping[str, str], data: bytes, why: str) -> bool:
    """Store a copy and return True if it is new; blocks.

    Raises:
        StorageError, OSError: if it cannot be written.
    """
    folder = directory / REFUSED
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{place}.json"
    if path.exists():
        return False
    copy = {
        "why": why,
        "subject": subject,
        "headers": dict(headers),
        "bytes": len(data),
        "body": data[:_MOST_COPY_BYTES].decode(errors="replace"),
    }
    atomic_write(path, orjson.dumps(copy, option=orjson.OPT_INDENT_2), sync=False)
    for old in sorted(folder.glob("*.json"), key=_age)[:-COPIES_KEPT]:
        old.unlink(missing_ok=True)
    return True


def _age(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

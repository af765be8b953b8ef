"""How far a relay has come in a stream, kept on disk: should its consumer be removed, the next one goes on there.

1. Written down is what the server calls settled, a little late: what comes again because of that is known again by
   its dedupe id. It is never ahead, so nothing is skipped.
2. It counts for one consumer of one stream. A stream that was removed and made again is another one (`made_at`).
"""

from __future__ import annotations

from pathlib import Path

import orjson
from pydantic import ValidationError

from relay_core.messages.base import WireModel
from relay_core.storage.atomic_file import atomic_write

FILE = "position.json"


class Position(WireModel):
    """A place in a stream."""

    stream: str
    made_at: str
    """When the stream was made, in the server's words."""
    durable: str
    settled: int
    """Number of the last message up to which all are settled."""


def read_position(directory: Path) -> Position | None:
    """Return what was written down last; blocks."""
    try:
        return Position.model_validate_json((directory / FILE).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_position(directory: Path, position: Position) -> None:
    """Write down a position; blocks.

    Raises:
        StorageError: if the disk refuses.
    """
    atomic_write(directory / FILE, orjson.dumps(position.to_wire()))

"""The name by which a relay is known on the streams: made once, kept beside the directories of its adapters.

It tells a relay's own messages from those of others, for all of its bridges alike, and names its consumers. A data
directory that is copied to another machine takes the name along: two relays with one name would share the incoming
messages, so remove the copy's file.
"""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex

from relay_core.errors import ConfigError
from relay_core.messages.subjects import is_subject
from relay_core.storage.atomic_file import atomic_write, fsync_directory, storage_error

FILE = "relay-id"


def relay_id(directory: Path) -> str:
    """Return the relay's name, made if there is none yet; blocks.

    Raises:
        ConfigError: if the file holds something else.
        StorageError: if it cannot be written.
    """
    path = directory / FILE
    try:
        name = path.read_text().strip()
    except FileNotFoundError:
        _make(path)
        name = path.read_text().strip()
    if not is_subject(name) or "." in name:
        raise ConfigError(f"{path} must hold one subject token: remove it, and the relay gets a new name")
    return name


def _make(path: Path) -> None:
    """Write a new name, whole, unless another bridge of this relay is faster."""
    draft = path.with_name(f".{FILE}.{token_hex(8)}")
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

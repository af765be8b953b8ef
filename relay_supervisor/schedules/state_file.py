"""The state of the schedules that survives a restart: `schedule-state.json`, which only the supervisor writes.

1. The file is replaced atomically and private (0600).
2. It is *broken* if it is not valid, is a link, or belongs to another user. It is then neither used nor overwritten,
   since paused schedules could run and missed times could not be known.
3. No file means no state: every schedule is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from relay_core.errors import ConfigError
from relay_core.messages.base import WireModel, first_problem
from relay_core.protocol.scheduling import ScheduleRun
from relay_core.storage.atomic_file import FileReader, atomic_write

STATE_FILE = "schedule-state.json"


class _Stored(WireModel):
    timing: str
    paused: bool = False
    handled_until: int | None = None
    last: ScheduleRun | None = None


class _StoredFile(WireModel):
    schedules: dict[str, _Stored]


@dataclass(slots=True)
class ScheduleRecord:
    """What is remembered of a schedule."""

    timing: str = ""
    """The timing to which `handled_until` belongs."""
    paused: bool = False
    handled_until: int | None = None
    """All due times up to this instant were published or skipped; None while it is paused or not enabled."""
    last: ScheduleRun | None = None


def load_state(path: Path, read: FileReader) -> dict[str, ScheduleRecord]:
    """Return the records by schedule id; blocks.

    Raises:
        ConfigError: if the file is broken.
    """
    try:
        stored = _StoredFile.model_validate(orjson.loads(read(path, private=True)))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {': '.join(filter(None, first_problem(error)))}", path=str(path)) from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", path=str(path)) from error
    return {
        id: ScheduleRecord(record.timing, record.paused, record.handled_until, record.last)
        for id, record in stored.schedules.items()
    }


def encode_state(records: dict[str, ScheduleRecord]) -> bytes:
    """Return the records as the content of the file."""
    stored = {
        id: _Stored(timing=record.timing, paused=record.paused, handled_until=record.handled_until, last=record.last)
        for id, record in records.items()
    }
    return orjson.dumps(_StoredFile(schedules=stored).to_wire(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def save_state(path: Path, data: bytes) -> None:
    """Replace the file; blocks.

    Raises:
        StorageError: if it cannot be written; the old one stays.
    """
    atomic_write(path, data)

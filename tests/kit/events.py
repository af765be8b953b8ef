"""Read segments of the event log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from relay_core.records.events import Event


class EventReader:
    """Iterate over the events in one segment; `bad_lines` counts the torn and unreadable lines skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.bad_lines = 0

    def __iter__(self) -> Iterator[Event]:
        self.bad_lines = 0
        with self._path.open("rb") as lines:
            for line in lines:
                try:
                    event = Event.model_validate(orjson.loads(line))
                except ValueError:
                    self.bad_lines += 1
                else:
                    yield event

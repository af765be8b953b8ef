"""Watch the operator's files.

One watchdog watch on the data directory, without modification events: SQLite's -wal is there and must not wake Python.
It sees renames into place, files closed after writing and deletions, and reports a name at most once in 50 ms, on the
event loop. A file that is moved out of the directory is reported half a second later, when watchdog stops waiting for
the second half of the move.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

from relay_core.storage.dropped_files import WATCH_LIMITS

DEBOUNCE_SECS = 0.05

_INOTIFY = sys.platform == "linux"
_log = logging.getLogger(__name__)


class FileWatch:
    """Report changes of named files in a directory, on the event loop."""

    def __init__(self, directory: Path, names: Iterable[str], on_change: Callable[[str], None]) -> None:
        self._directory = directory
        self._names = frozenset(names)
        self._on_change = on_change
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._observer: BaseObserver | None = None

    async def __aenter__(self) -> Self:
        self._observer = await asyncio.to_thread(self._start, asyncio.get_running_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is not None:
            await asyncio.to_thread(_stop, self._observer)
        for timer in self._timers.values():
            timer.cancel()

    def _start(self, loop: asyncio.AbstractEventLoop) -> BaseObserver:
        handler = _NameHandler(self._names, lambda name: loop.call_soon_threadsafe(self._seen, loop, name))
        try:
            # Only inotify reports when a file is closed; other systems report modifications.
            return self._observe(Observer(), handler, FileClosedEvent if _INOTIFY else FileModifiedEvent)
        except OSError as error:
            if error.errno not in WATCH_LIMITS:
                raise
            _log.warning("%s is polled for changes of the operator's files: %s", self._directory, error)
            return self._observe(PollingObserver(), handler, FileModifiedEvent)

    def _observe(
        self, observer: BaseObserver, handler: FileSystemEventHandler, written: type[FileSystemEvent]
    ) -> BaseObserver:
        try:
            changes: list[type[FileSystemEvent]] = [FileCreatedEvent, FileMovedEvent, FileDeletedEvent, written]
            observer.schedule(handler, self._directory, event_filter=changes)
            observer.start()
        except BaseException:
            observer.stop()
            raise
        return observer

    def _seen(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        # Counted from the first event, not the last: a file that changes constantly is reported all the same.
        if name not in self._timers:
            self._timers[name] = loop.call_later(DEBOUNCE_SECS, self._fire, name)

    def _fire(self, name: str) -> None:
        del self._timers[name]
        self._on_change(name)


class _NameHandler(FileSystemEventHandler):
    """Forward the watched names from watchdog's thread."""

    def __init__(self, names: frozenset[str], seen: Callable[[str], object]) -> None:
        self._names = names
        self._seen = seen

    def on_any_event(self, event: FileSystemEvent) -> None:
        for path in {event.src_path, event.dest_path}:
            name = os.path.basename(os.fsdecode(path))
            if name in self._names and not event.is_directory:
                self._seen(name)


def _stop(observer: BaseObserver) -> None:
    observer.stop()
    observer.join()

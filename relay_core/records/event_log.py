"""The event log: segments of JSON lines that Spark reads directly, written off the publish path.

``events/date=YYYY-MM-DD/HH-{start ms}-{pid}.jsonl``, by UTC date and hour of each event's own time.

1. `put` only appends to a list. Formatting and writing happen in a background thread, which drops and
   counts events it cannot keep up with; it never slows or fails a publish.
2. While a segment is written its name begins with ``_``, which Spark and Hadoop skip. It is *sealed* by a rename when
   its hour is over, its size is reached, `seal` is called or the log closes. A segment without ``_`` is complete and is
   never written again: ingest reads exactly those.
3. A process never appends to a segment that it has not created. The open segment of a killed process is sealed by the
   next one unchanged (relay.lock excludes another writer), so a sealed segment may end in a torn line.
4. A batch is one write to each segment it touches. A short write is truncated again, so a torn line is never in the
   middle; events that could not be written are dropped and counted. Each batch tries again, and a directory that was
   removed is created again.
5. Nothing is fsynced: no guarantee of the bus depends on events, and a power loss may tear the newest segment just as a
   kill does.

A quiet bus leaves its last segment open past its hour, since only an event advances the log: call `seal` first to read
all events of a day.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_core.clock import Clock
from relay_core.config import EventsConfig
from relay_core.records.batch_thread import BatchThread
from relay_core.records.events import RECENT, EventKind, EventSource, WireEvent, format_events, make_event

MAX_WAITING = 100_000

_HOUR_MS = 3_600_000
_CHUNK = 128
"""Events that are formatted together: the next ones reuse their memory, which takes a third off the time."""
_log = logging.getLogger(__name__)


class EventLog:
    """Write events to segments in the background, from `start` to `close`."""

    def __init__(self, directory: Path, config: EventsConfig, clock: Clock) -> None:
        self._directory = directory
        self._config = config
        self._clock = clock
        self.written = 0
        self.bytes_written = 0
        self.failed_writes = 0
        self._lost = 0
        self._failing = False
        self._segment: _Segment | None = None
        self._thread = BatchThread[WireEvent | EventSource](
            "relay-events", self._flush, limit=MAX_WAITING, on_error=self._lose
        )
        self.put = self._thread.put
        """Log an event, or a source that makes it when it is written; costs an append."""
        self.recent: deque[WireEvent] = deque(maxlen=RECENT)
        """The newest events apart from ordinary traffic, for dashboards."""
        self.noted = 0
        """The number of such events so far."""

    @property
    def dropped(self) -> int:
        """Return how many events were lost because too many were waiting, or because they could not be written."""
        return self._lost + self._thread.dropped

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def start(self) -> None:
        """Start the writer, which also seals the segments of a killed process."""
        self._thread.start()
        self._thread.submit(self._seal_leftovers)

    def close(self) -> None:
        """Write the waiting events, seal the segment and stop; blocks."""
        self._thread.close()
        self._seal()

    def update_config(self, config: EventsConfig) -> None:
        """Use a new configuration from the next batch on."""
        self._config = config

    def emit(self, kind: EventKind, *, time: int | None = None, **fields: str | int | None) -> None:
        """Log an event by field names, now unless `time` is given.

        Raises:
            TypeError: if the schema has no such field.
        """
        event = make_event(kind, self._clock.now_ms() if time is None else time, fields)
        self.recent.append(event)
        self.noted += 1
        self.put(event)

    def barrier(self) -> Future[None]:
        """Return a future that resolves once everything emitted so far has been written."""
        return self._thread.barrier()

    def seal(self) -> Future[None]:
        """Complete the open segment, so that an ingest sees everything emitted so far."""
        return self._thread.submit(self._seal)

    def expire(self, keep_days: int, now_ms: int) -> int:
        """Remove the dates older than `keep_days` days and return how many; blocks."""
        oldest = datetime.fromtimestamp(now_ms / 1000, UTC).date() - timedelta(days=keep_days)
        removed = 0
        for partition in self._partitions():
            if partition.name < f"date={oldest}":
                shutil.rmtree(partition, ignore_errors=True)
                removed += not partition.exists()
        return removed

    def _flush(self, batch: list[WireEvent | EventSource]) -> None:
        if not self._config.enabled:
            return
        by_hour: dict[int, list[tuple[bytes, int]]] = {}
        newest = 0
        for start in range(0, len(batch), _CHUNK):
            events = [item if isinstance(item, dict) else item[0](item[1]) for item in batch[start : start + _CHUNK]]
            for newest, group in groupby(events, _hour_of):
                together = list(group)
                lines, count = format_events(together)
                self._lost += len(together) - count
                by_hour.setdefault(newest, []).append((lines, count))
        # The hour of the newest event comes last and stays open, even after the clock was set back.
        for hour in sorted(by_hour, key=lambda hour: hour == newest):
            self._write(hour, by_hour[hour])

    def _write(self, hour: int, chunks: list[tuple[bytes, int]]) -> None:
        data = b"".join([lines for lines, _ in chunks])
        count = sum([count for _, count in chunks])
        if not count:
            return
        try:
            segment = self._segment_for(hour)
            segment.append(data)
        except OSError as error:
            self.failed_writes += 1
            self._lost += count
            if not self._failing:
                _log.error("cannot write events to %s, they are dropped: %s", self._directory, error)
            self._failing = True
            return
        if self._failing:
            _log.warning("events are written to %s again; %d were dropped", self._directory, self._lost)
        self._failing = False
        self.written += count
        self.bytes_written += len(data)
        if segment.size >= self._config.max_segment_bytes:
            self._seal()

    def _segment_for(self, hour: int) -> _Segment:
        segment = self._segment
        if segment is not None and segment.hour == hour and segment.is_on_disk():
            return segment
        self._seal()
        with suppress(FileExistsError):
            self._directory.mkdir(mode=0o700)
        self._segment = _Segment(self._directory, hour, self._clock.now_ms())
        return self._segment

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.seal()

    def _seal_leftovers(self) -> None:
        for partition in self._partitions():
            for path in partition.glob("_*.jsonl"):
                if self._segment is None or path != self._segment.path:
                    _seal_file(path)

    def _partitions(self) -> list[Path]:
        return [path for path in self._directory.glob("date=????-??-??") if path.is_dir()]

    def _lose(self, error: Exception, batch: list[WireEvent | EventSource]) -> None:
        self._lost += len(batch)


def _hour_of(event: WireEvent) -> int:
    hour: int = event["time"] // _HOUR_MS
    return hour


class _Segment:
    """The open segment; only the writer's thread uses it."""

    def __init__(self, directory: Path, hour: int, now_ms: int) -> None:
        self.hour: int | None = hour
        self.size = 0
        start = datetime.fromtimestamp(hour * _HOUR_MS / 1000, UTC)
        partition = directory / f"date={start:%Y-%m-%d}"
        with suppress(FileExistsError):
            partition.mkdir(mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            self.path = partition / f"_{start:%H}-{now_ms}-{os.getpid()}.jsonl"
            # In a container every process may have this pid, and a clock can be set back.
            with suppress(FileExistsError):
                if not _sealed(self.path).exists():
                    self._descriptor = os.open(self.path, flags, 0o600)
                    return
            now_ms += 1

    def is_on_disk(self) -> bool:
        """Return True if the file still has a name; writes to a removed one would succeed silently."""
        return os.fstat(self._descriptor).st_nlink > 0

    def append(self, data: bytes) -> None:
        """Add whole lines in one write, or nothing."""
        written = os.write(self._descriptor, data)
        if written < len(data):
            hour, self.hour = self.hour, None  # not used again unless the torn end can be truncated
            os.ftruncate(self._descriptor, self.size)
            self.hour = hour
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.size += written

    def seal(self) -> None:
        """Close the file and give it its final name."""
        os.close(self._descriptor)
        _seal_file(self.path)


def _sealed(path: Path) -> Path:
    return path.with_name(path.name.removeprefix("_"))


def _seal_file(path: Path) -> None:
    # A segment that cannot be renamed now is sealed by the next start.
    with suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()
        else:
            path.rename(_sealed(path))

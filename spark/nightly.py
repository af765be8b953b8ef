"""One run: ingest new events, and make the report of every day that is behind.

1. A run holds the lock on its output (storage/locations.py). It decides what to do before it starts Spark, and does not
   start Spark if there is nothing to do.
2. Days are made oldest first (days.py), each from its ingest to its report (one_day.py). A killed run leaves every
   report whole, and the next run makes those that are behind.
3. A day's report reads the day's events, the states that the day before left open, and the numbers of 14 days: nothing
   that grows with history. Days beyond the retention time are removed.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from time import monotonic, time_ns

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.days import HISTORY_DAYS, Day, Request, choose
from spark.engine.java import NoJavaError
from spark.engine.session import open_session
from spark.events.ingest import find_new, ingest
from spark.events.manifest import Manifest, read_manifest
from spark.one_day import OneDay
from spark.progress import Part, Progress
from spark.settings import Settings
from spark.storage.daily_table import dates
from spark.storage.locations import Storage, StorageError

OpenSession = Callable[[Settings, bool], AbstractContextManager[SparkSession]]
"""Open a session, given the settings and whether there is little to compute."""

_BASELINE = timedelta(days=HISTORY_DAYS + 1)
"""The small tables that later days are compared with are kept at least this long."""
_FEW_EVENTS = 1_000_000
_LINE_BYTES = 300
_STARTED = 0.2  # of a run, measured on one small day, the usual run
_INGEST = 0.25  # of a day


class Failed(Exception):
    """A run failed; the text says why."""


def nightly(
    settings: Settings,
    request: Request,
    progress: Progress,
    *,
    now_ms: int | None = None,
    session: OpenSession | None = None,
) -> list[date]:
    """Make the reports that are behind, or those requested, and return their days.

    `session` and `now_ms` replace the session that a run opens and the current time.

    Raises:
        Failed: if the run failed; says what to do.
    """
    began = monotonic()
    try:
        night = _Night(settings, progress, time_ns() // 1_000_000 if now_ms is None else now_ms)
        night.check_locations()
        with night.tables.lock():
            made = night.run(request, session or _own_session)
    except (StorageError, NoJavaError, ValueError) as error:
        raise Failed(str(error)) from error
    except (ConnectionError, Py4JNetworkError) as error:
        raise Failed("Spark's JVM died: it was killed, or the machine is out of memory") from error
    except OSError as error:
        raise Failed(f"{error.filename or settings.output}: {error.strerror or error}") from error
    except (PySparkException, Py4JError) as error:
        raise Failed(f"Spark: {_cause(str(error))}") from error
    progress.end(
        {
            "reports": [str(day) for day in made],
            "events": sum(manifest.counts.events for manifest in made.values()),
            "badLines": sum(manifest.counts.bad for manifest in made.values()),
            "tookMs": int((monotonic() - began) * 1000),
        }
    )
    return list(made)


def _cause(text: str) -> str:
    """Return the most useful line of an error: the innermost cause, else the first line."""
    lines = [line.strip() for line in text.strip().splitlines()] or [""]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (
        causes[-1] if causes else lines[1] if lines[0].startswith("An error occurred while") and lines[1:] else lines[0]
    )


def _own_session(settings: Settings, light: bool) -> AbstractContextManager[SparkSession]:
    return open_session("relay", master=settings.master, remote=settings.remote, conf=settings.conf, light=light)


class _Night:
    """One run over its days."""

    def __init__(self, settings: Settings, progress: Progress, now_ms: int) -> None:
        self.events = Storage(settings.events)
        self.output = Storage(settings.output)
        self.tables = self.output.below("tables")
        self._settings = settings
        self._progress = progress
        self._now_ms = now_ms
        self._today = datetime.fromtimestamp(now_ms / 1000, UTC).date()

    def check_locations(self) -> None:
        """Check that the locations are usable.

        Raises:
            StorageError: if not; says what to change.
        """
        if f"{self.output.root}/".startswith(f"{self.events.root}/"):
            raise StorageError(f"reports cannot be written to {self.output.root}: the event log is {self.events.root}")
        if not self.events.exists():
            raise StorageError(f"there are no events at {self.events.root}: a running bus writes them there")

    def run(self, request: Request, session: OpenSession) -> dict[date, Manifest]:
        """Make the days' reports, and return the manifest of each."""
        self._progress.report("looking for new events", 0.0)
        known = dates(self.tables, "manifest")
        # Relative to the newest events: a clock that is ahead must not remove everything.
        newest = max([*known, *dates(self.events)], default=self._today)
        oldest = min(newest, self._today) - timedelta(days=self._settings.keep_days)
        self._tidy(oldest)
        fresh = find_new(self.events, self.tables)
        known = [day for day in known if day >= oldest]
        days = choose(request, self._today, fresh=fresh, known=known, is_behind=self._is_behind)
        if request.date is not None and request.date < oldest:
            raise StorageError(f"{request.date} is older than jobs.metrics.keepDays: its report would be removed")
        days = [day for day in days if day >= oldest]
        made: dict[date, Manifest] = {}
        if not days:
            return made
        self._progress.report("starting Spark", 0.02)
        settings = self._settings
        with session(settings, self._is_light(days, fresh)) as spark:
            for number, day in enumerate(days):  # which may grow
                share = (1.0 - _STARTED) / len(days)
                begin, about = _STARTED + number * share, str(day) if len(days) > 1 else None
                self._progress.report("ingesting events", begin, about)
                manifest = read_manifest(self.tables, day) or Manifest()
                if day in fresh:
                    manifest = ingest(spark, self.events, self.tables, day, fresh[day], now_ms=self._now_ms)
                progress = Part(self._progress, begin + _INGEST * share, begin + share, about)
                one_day = OneDay(spark, self.output, settings.limits, progress)
                carry_over_changed = one_day.make(Day.of(day, self._now_ms), manifest)
                made[day] = manifest
                later = next((other for other in known if other > day), None)
                if carry_over_changed and not request.remakes and later is not None and later not in days:
                    if request.covers(later, self._today):
                        insort(days, later)  # its report was made from the earlier carry-over of this day
        return made

    def _is_behind(self, day: date) -> bool:
        """Return True if a day's report is missing, older than its events, or made before the day was over."""
        try:
            first, _, _ = next(self.output.chunks(f"date={day}/report.json"), b"").partition(b"\n")
            head = json.loads(first.rstrip(b",") + b"}")
        except (FileNotFoundError, ValueError):
            return True
        manifest = read_manifest(self.tables, day) or Manifest()
        return head.get("ingestedAt") != manifest.ingested_at or (day < self._today and not head.get("complete"))

    def _is_light(self, days: list[date], fresh: Mapping[date, Mapping[str, int]]) -> bool:
        """Return True if a run has so few events that starting Spark is most of its work."""
        known = sum(manifest.counts.events for day in days if (manifest := read_manifest(self.tables, day)))
        new = sum(size for day in days for size in fresh.get(day, {}).values())
        return known + new / _LINE_BYTES < _FEW_EVENTS

    def _tidy(self, oldest: date) -> None:
        """Remove leftovers of killed runs, and days beyond the retention time."""
        for place, name in [(self.output, ""), *((self.tables, name) for name in self.tables.names())]:
            place.mend(name)
            for day in dates(place, name):
                if day < (oldest if name not in ("carried", "daily") else min(oldest, self._today - _BASELINE)):
                    for ending in ("", ".json"):  # a manifest is a file
                        place.remove(f"{name}/date={day}{ending}".removeprefix("/"))

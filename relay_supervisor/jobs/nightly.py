"""The nightly job's process: its command line, its progress lines, and the detection of missed nights.

1. The command is ``python -m spark nightly --data-dir DIR``, with the requested days as options. A command that the
   operator configured gets both in its environment, since its options are unknown.
2. A line of output that is a JSON object with the single key `progress` or `result`, in the expected form, is a message
   to the supervisor. All other lines are ordinary output.
3. A night was missed if the newest due report does not exist, or was made before its day was over, and the day has
   events. If the reports are stored on another machine, no night counts as missed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import orjson
from pydantic import ValidationError

from relay_core.config import NightlyConfig
from relay_core.errors import RelayError
from relay_core.messages.operator_views import JobArguments, JobProgress
from relay_core.storage.data_dir import DataDir
from relay_supervisor.jobs.subprocess import ChildResult

NO_SPARK = "the Spark part is not installed: run pip install 'relay-bus[spark]', or set jobs.metrics.command"

_MARKS = ('{"progress":', '{"result":')
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_NAME = re.compile(r"[a-z][A-Za-z]{0,39}")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MOST_COUNTS = 20
_ERROR_KEPT = 500
_MOST_REPORTS = 400
_MOST = 2**53  # every JSON parser reads integers up to this exactly


@dataclass(slots=True)
class RunOutput:
    """The progress and the result that a run has reported."""

    progress: JobProgress | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reports: list[str] | None = None

    def parse(self, line: str) -> bool:
        """Record a line of progress or result; return False for ordinary output."""
        if not line.startswith(_MARKS):
            return False
        try:
            (kind, value), *more = orjson.loads(line).items()
            if more or not isinstance(value, dict):
                return False
            if kind == "progress":
                self.progress = JobProgress.model_validate(value)
            else:
                self._parse_result(value)
        except (ValueError, ValidationError):
            return False
        return True

    def _parse_result(self, result: dict[str, Any]) -> None:
        reports = result.get("reports")
        if isinstance(reports, list):
            self.reports = [day for day in reports if isinstance(day, str) and _DAY.fullmatch(day)][:_MOST_REPORTS]
            self.counts["reports"] = len(reports)
        for name, value in result.items():
            is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
            if is_count and name != "tookMs" and _NAME.fullmatch(name) and len(self.counts) < _MOST_COUNTS:
                self.counts[_HUMP.sub("_", name).lower()] = value


def has_spark() -> bool:
    """Return True if the package `spark` and its extra are installed."""
    importlib.invalidate_caches()  # it may have been installed since the start
    return all(map(importlib.util.find_spec, ("spark", "pyspark")))


def build_command(
    config: NightlyConfig, data_dir: DataDir, arguments: JobArguments | None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the command line and the environment of a run."""
    directory = str(data_dir.path)
    options = arguments.options() if arguments is not None else []
    env = {**os.environ, "RELAY_DATA_DIR": directory, "RELAY_JOB_OPTIONS": shlex.join(options)}
    # -P: do not import a spark.py in the working directory.
    spark = (sys.executable, "-P", "-m", "spark", "nightly", "--data-dir", directory, *options)
    return config.command or spark, env


def check_days(arguments: JobArguments, now_ms: int) -> None:
    """Check that no requested day is in the future.

    Raises:
        RelayError: with code `invalid_params`.
    """
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    for name in ("date", "since", "until"):
        day: str | None = getattr(arguments, name)
        if day is not None and day > today.isoformat():
            raise RelayError(f"{name}: {day} is in the future: today is {today} in UTC", code="invalid_params")


def newest_due_day(config: NightlyConfig, now_ms: int) -> date:
    """Return the newest day whose report should exist or be in progress."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    is_past = now.time() >= time.fromisoformat(config.at)
    return now.date() - timedelta(days=1 if is_past else 2)


def is_report_missing(config: NightlyConfig, data_dir: DataDir, day: date) -> bool:
    """Return True if a day has events and no report of the whole day; False if reports are stored elsewhere."""
    reports = config.reports_dir(data_dir.reports)
    if reports is None or not (data_dir.events / f"date={day}").is_dir():
        return False
    try:
        made = (reports / f"date={day}" / "report.json").stat().st_mtime
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return made < datetime.combine(day + timedelta(days=1), time(), UTC).timestamp()


def describe_failure(result: ChildResult) -> str:
    """Return the exit code or signal of a failed run, and its last line of output."""
    if result.returncode < 0:
        number = -result.returncode
        return f"was killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    lines = result.output.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"exit code {result.returncode}" + (f": {last[:_ERROR_KEPT]}" if last else "")

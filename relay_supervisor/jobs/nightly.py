"""The nightly job's process: how it is called, what it says while it runs, and which night was missed.

1. It is ``python -m spark nightly --data-dir DIR`` and the days that were asked for, as options. A command of the
   operator's finds both in its environment, since nobody knows which options it takes.
2. A line of its output that is JSON with the one key `progress` or `result` is meant for us. Any other line is
   ordinary output, also one that only looks so.
3. A night was missed if the newest report that should be there by now is not, or was made before its day was over,
   though the day has events. Where reports are written elsewhere, nobody here can know.
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
_MOST = 2**53  # what any reader of JSON takes for a whole number


@dataclass(slots=True)
class RunOutput:
    """What a run has said of itself."""

    progress: JobProgress | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reports: list[str] | None = None

    def take(self, line: str) -> bool:
        """Take a line that is meant for us; return whether it is."""
        if not line.startswith(_MARKS):
            return False
        try:
            (kind, value), *more = orjson.loads(line).items()
            if more or not isinstance(value, dict):
                return False
            if kind == "progress":
                self.progress = JobProgress.model_validate(value)
            else:
                self._take_result(value)
        except (ValueError, ValidationError):
            return False
        return True

    def _take_result(self, result: dict[str, Any]) -> None:
        reports = result.get("reports")
        if isinstance(reports, list):
            self.reports = [day for day in reports if isinstance(day, str) and _DAY.fullmatch(day)][:_MOST_REPORTS]
            self.counts["reports"] = len(reports)
        for name, value in result.items():
            # How long it took is no count, and is known of every run.
            is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
            if is_count and name != "tookMs" and _NAME.fullmatch(name) and len(self.counts) < _MOST_COUNTS:
                self.counts[_HUMP.sub("_", name).lower()] = value


def has_spark() -> bool:
    """Tell whether our own part is there, and what the extra brings."""
    importlib.invalidate_caches()  # it may have been installed since
    return all(map(importlib.util.find_spec, ("spark", "pyspark")))


def call_of(
    config: NightlyConfig, data_dir: DataDir, arguments: JobArguments | None
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return the command line and the environment of a run."""
    directory = str(data_dir.path)
    options = arguments.options() if arguments is not None else []
    env = {**os.environ, "RELAY_DATA_DIR": directory, "RELAY_JOB_OPTIONS": shlex.join(options)}
    # -P: a spark.py of somebody else's that lies where the supervisor was started is not ours.
    ours = (sys.executable, "-P", "-m", "spark", "nightly", "--data-dir", directory, *options)
    return config.command or ours, env


def check_days(arguments: JobArguments, now_ms: int) -> None:
    """Refuse days that have not come.

    Raises:
        RelayError: with code `invalid_params`.
    """
    today = datetime.fromtimestamp(now_ms / 1000, UTC).date()
    for name in ("date", "since", "until"):
        day: str | None = getattr(arguments, name)
        if day is not None and day > today.isoformat():
            raise RelayError(f"{name}: {day} has not come yet: today is {today}, in UTC", code="invalid_params")


def day_due(config: NightlyConfig, now_ms: int) -> date:
    """Return the newest day whose report should be there, or in the making, by now."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    is_past = now.time() >= time.fromisoformat(config.at)
    return now.date() - timedelta(days=1 if is_past else 2)


def lacks_report(config: NightlyConfig, data_dir: DataDir, day: date) -> bool:
    """Tell whether a day has events and no report of all of it; False, too, if nobody here can know."""
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


def how_it_ended(result: ChildResult) -> str:
    """Return why a run that did not end well did not, in words."""
    if result.returncode < 0:
        number = -result.returncode
        return f"was killed by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    lines = result.output.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"exit code {result.returncode}" + (f": {last[:_ERROR_KEPT]}" if last else "")

"""Models of traces, jobs and nightly reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from relay_core.messages.delivery import Span, TraceSearch
from relay_core.messages.operator_views import JobArguments, JobState
from relay_core.protocol.base import Limit, Params, Result

REPORT_JOB = "metrics"
"""The job that makes the nightly reports."""
_DAY_MS = 86_400_000
_FRESH_MS = 28 * 3_600_000
"""How long after the end of its day the newest report counts as fresh: until the next one is due."""


class Spans(Result):
    """One span per target of a message."""

    spans: list[Span]


class TracesParams(TraceSearch, Params):
    """The messages to list: those that meet every given condition."""

    limit: Limit = 100


class JobList(Result):
    """Every job."""

    jobs: list[JobState]


class JobParams(Params):
    """A job."""

    name: str
    """From `jobs.list`."""


class RunJobParams(JobParams):
    """A job to run now; joins a run in progress that has the same arguments."""

    wait: bool = True
    """Answer when the run has ended, not when it has started."""
    arguments: JobArguments | None = None
    """For the nightly job only."""


class Report(Result):
    """A nightly report."""

    date: str
    """As YYYY-MM-DD."""
    made_at: int
    """Epoch milliseconds."""
    bytes: int
    """Size of report.json."""
    complete: bool | None = None
    """Whether the day was over. This and the following fields are None if the report lacks them."""
    events: int | None = None
    """Number of events it was made from."""
    attention: int | None = None
    """Number of entries that need attention."""

    def days_overdue(self, now_ms: int) -> int:
        """Return how old the report is, in days after the end of its day; 0 until the next one is due."""
        try:
            ended = datetime.fromisoformat(self.date).replace(tzinfo=UTC).timestamp() * 1000 + _DAY_MS
        except ValueError:  # not a date of the calendar
            ended = self.made_at
        age = now_ms - ended
        return int(age // _DAY_MS) if age >= _FRESH_MS else 0


class ReportList(Result):
    """The nightly reports, newest first."""

    reports: list[Report]


class ReportParams(Params):
    """A report to read; the newest without a date."""

    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None


class ReportContent(Result):
    """The content of report.json."""

    date: str
    """As YYYY-MM-DD."""
    report: dict[str, Any]

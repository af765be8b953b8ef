"""Models of traces, jobs and nightly reports."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from relay_core.messages.delivery import Span, TraceSearch
from relay_core.messages.operator_views import JobArguments, JobState
from relay_core.protocol.base import Limit, Params, Result


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

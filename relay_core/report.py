"""What is in the report.json that Spark makes, as those who show it read it: the command line and the dashboard.

spark/report/model.py writes it; a test holds the two together. Readers ignore what they do not know. A document that
does not read as one is a report of somebody else's, and shown by its bare shape.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import Field, ValidationError

from relay_core.model import WireModel

VERSION = 1
NUMERIC = frozenset({"count", "bytes", "us", "ms", "secs", "share", "varies"})
"""The units that are numbers to be compared."""

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Noted(WireModel):
    """Something that changed or needs attention."""

    level: str
    title: str
    text: str = ""
    command: str | None = None
    """What to type next."""
    subject: str | None = None
    sender: str | None = None
    trace_id: str | None = None


class KeyNumber(WireModel):
    """One of the day's key numbers."""

    title: str
    unit: str
    value: Finite | None = None
    usual: Finite | None = None
    change: Finite | None = None
    trend: list[Finite | None] = Field(default_factory=list)


class Series(WireModel):
    """One line of a plot."""

    name: str
    values: list[Finite | None]


class Plot(WireModel):
    """Numbers to be drawn."""

    title: str
    about: str = ""
    form: str
    """``hours``, ``days`` or ``range``."""
    unit: str
    labels: list[str]
    series: list[Series] = Field(min_length=1)


class TableColumn(WireModel):
    """One column of a table; what has the unit ``varies`` has it in the row's own ``unit``."""

    name: str
    title: str
    unit: str = "text"


class ReportTable(WireModel):
    """The first rows of a table."""

    title: str
    about: str = ""
    columns: list[TableColumn] = Field(min_length=1)
    bar: str | None = None
    rows: list[dict[str, Any]]
    total: int


class NightlyReport(WireModel):
    """What readers know of report.json."""

    version: int
    date: str
    complete: bool = True
    until: str = ""
    made_at: str = ""
    took_secs: Finite = 0.0
    events: int = 0
    attention_count: int = 0
    attention: list[Noted]
    headline: list[KeyNumber]
    plots: list[Plot]
    tables: dict[str, ReportTable]
    data: dict[str, Any] = Field(default_factory=dict)
    """What it was made from."""


def read_nightly(report: dict[str, Any]) -> NightlyReport | None:
    """Return a report as it is shown, or None if it is none that is known here."""
    try:
        found = NightlyReport.model_validate(report)
    except ValidationError:
        return None
    return found if found.version == VERSION else None

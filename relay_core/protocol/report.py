"""The schema of report.json: Spark writes it, the command line and the dashboard read it.

1. Keys are camelCase, every number has a unit. The first line of the file is its head: every part that is not a list or
   an object. Listing reports reads only that line.
2. An unknown value is null; there is no NaN and no number that JSON cannot hold.
3. Texts come from the bus unchanged, only cut: readers sanitise them.
4. A table's rows may have more keys than its columns, so a row can lead to its subject, sender or trace.
5. Readers are lenient: they ignore unknown keys, and parts that they only show are optional. A document that still does
   not validate is not from this version's Spark job; readers refuse it with `unreadable`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationError

from relay_core.messages.base import WireModel

VERSION = 1
NUMERIC = frozenset({"count", "bytes", "us", "ms", "secs", "share", "varies"})
"""The units of numbers that can be compared."""

Unit = Literal["count", "bytes", "us", "ms", "secs", "share", "hour", "time", "flag", "text", "varies"]
"""The units that Spark writes. A `time` is ``HH:MM`` or epoch milliseconds; `varies` refers to the row's ``unit``."""
Level = Literal["bad", "warn", "good", "info"]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


class Finding(WireModel):
    """Something that changed or needs attention."""

    level: str
    title: str
    text: str = ""
    command: str | None = None
    """The command to run next."""
    table: str | None = None
    """The table with the details."""
    subject: str | None = None
    sender: str | None = None
    target: str | None = None
    trace_id: str | None = None


class KeyNumber(WireModel):
    """One of the day's key numbers, compared with the days before."""

    name: str = ""
    title: str
    unit: str
    value: Finite | None = None
    usual: Finite | None = None
    """The median of the days before."""
    change: Finite | None = None
    """Relative to the usual value; None without one."""
    less_is_better: bool = False
    trend: list[Finite | None] = Field(default_factory=list)
    """The days before, oldest first, then this one."""


class Series(WireModel):
    """One line of a plot."""

    name: str
    values: list[Finite | None]


class Plot(WireModel):
    """Numbers to draw."""

    name: str = ""
    title: str
    about: str = ""
    form: str
    """``hours``, ``days`` or ``range``."""
    unit: str
    labels: list[str]
    series: list[Series] = Field(min_length=1)


class TableColumn(WireModel):
    """One column of a table."""

    name: str
    title: str
    unit: str = "text"

    def unit_in(self, row: dict[str, Any]) -> str:
        """Return the unit of its value in a row."""
        return str(row.get("unit", "count")) if self.unit == "varies" else self.unit


class ReportTable(WireModel):
    """The first rows of a table."""

    title: str
    about: str = ""
    columns: list[TableColumn] = Field(min_length=1)
    bar: str | None = None
    """The column to draw as bars."""
    rows: list[dict[str, Any]]
    total: int


class NightlyReport(WireModel):
    """The whole report."""

    version: int
    date: str
    complete: bool = True
    """False if the day was not over."""
    until: str = ""
    """The end of the analysed time, as ISO 8601."""
    made_at: str = ""
    took_secs: Finite = 0.0
    events: int = 0
    ingested_at: int = 0
    """When the events were last ingested, in epoch milliseconds."""
    attention_count: int = 0
    """How many findings need attention."""
    attention: list[Finding]
    headline: list[KeyNumber]
    plots: list[Plot]
    tables: dict[str, ReportTable]
    data: dict[str, Any] = Field(default_factory=dict)
    """The input: events, segments, badLines by reason, unknownKinds by kind."""

    def to_json(self) -> bytes:
        """Return report.json: the head on the first line, every other part on a separate line."""
        parts = self.model_dump(mode="json", by_alias=True)
        head = {key: parts.pop(key) for key in list(parts) if not isinstance(parts[key], dict | list)}
        lines = [_dumped(head)[1:-1], *(f"{_dumped(key)}:{_dumped(part)}" for key, part in parts.items())]
        return ("{" + ",\n".join(lines) + "}\n").encode("utf-8", "replace")


def read_nightly(document: dict[str, Any]) -> NightlyReport | None:
    """Return the report in a document, or None if it is not one of this version."""
    try:
        report = NightlyReport.model_validate(document)
    except ValidationError:
        return None
    return report if report.version == VERSION else None


def unreadable(date: str) -> str:
    """Return the reply to a request for a report that `read_nightly` cannot read."""
    return f"the report of {date} is not in this version's format: 'relay report show {date} --json' prints it"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

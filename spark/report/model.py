"""What report.json is: small, in the order in which it is read, every number with its unit.

1. Keys are camelCase. The first line of the file is its head, all that is no list or object: whoever lists
   reports reads that line alone.
2. A value that nobody knows is null; there is no NaN, and no number that JSON cannot hold.
3. Texts come from the bus as they are, only cut: whoever shows them makes them harmless.
4. A table's rows may have more keys than its columns, so that a row can lead to what it is about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

VERSION = 1
MOST_TEXT = 300
"""Characters of one text in a table."""

Unit = Literal["count", "bytes", "us", "ms", "secs", "share", "hour", "time", "flag", "text", "varies"]
"""A `time` is ``HH:MM``, or milliseconds since the epoch; what `varies` has its unit in the row's own ``unit``."""
Level = Literal["bad", "warn", "good", "info"]
Form = Literal["hours", "days", "range"]


class DayLike(Protocol):
    """The day of a report, as spark.schema.Day."""

    @property
    def date(self) -> date:
        """Return the UTC date."""

    @property
    def until_ms(self) -> int:
        """Return the first moment that was not looked at."""

    @property
    def is_over(self) -> bool:
        """Tell whether all of it was seen."""


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Column(_Part):
    """One column of a table."""

    name: str
    title: str
    unit: Unit = "text"


class Number(_Part):
    """One of the day's key numbers, against what is usual."""

    name: str
    title: str
    unit: Unit
    value: float | None
    usual: float | None
    """The median of the days before."""
    change: float | None
    """As a share of what is usual; None where there is nothing to compare with."""
    less_is_better: bool
    trend: list[float | None]
    """The days before, oldest first, and this one last."""


class Finding(_Part):
    """Something that changed or needs attention."""

    level: Level
    title: str
    text: str
    command: str | None = None
    """What to type next."""
    table: str | None = None
    """Where there is more about it."""
    subject: str | None = None
    sender: str | None = None
    target: str | None = None
    trace_id: str | None = None


class Series(_Part):
    """One line of a plot."""

    name: str
    values: list[float | None]


class Plot(_Part):
    """Numbers to be drawn."""

    name: str
    title: str
    about: str
    form: Form
    unit: Unit
    labels: list[str]
    series: list[Series]


class ShownTable(_Part):
    """A table as it is shown: the first rows of so many."""

    title: str
    about: str
    columns: list[Column]
    bar: str | None
    """The column that is drawn as bars."""
    rows: list[dict[str, Any]]
    total: int


class Data(_Part):
    """What the report was made from."""

    events: int
    segments: int
    bad_lines: dict[str, int]
    """Lines that could not be taken, by reason."""
    unknown_kinds: dict[str, int]
    """Events of kinds that no table knows."""


class Report(_Part):
    """All of report.json."""

    version: int = VERSION
    date: str
    complete: bool
    """Whether the day was over."""
    until: str
    """The first moment that was not looked at, as ISO 8601."""
    made_at: str
    took_secs: float
    events: int
    ingested_at: int
    """When the events it was made from were last taken in, in milliseconds since the epoch."""
    attention_count: int
    """How many findings need attention."""
    attention: list[Finding]
    headline: list[Number]
    plots: list[Plot]
    tables: dict[str, ShownTable]
    data: Data

    def to_json(self) -> bytes:
        """Return report.json: the head is its first line, every further part has a line of its own."""
        parts = self.model_dump(mode="json", by_alias=True)
        head = {key: parts.pop(key) for key in list(parts) if not isinstance(parts[key], dict | list)}
        lines = [_dumped(head)[1:-1], *(f"{_dumped(key)}:{_dumped(part)}" for key, part in parts.items())]
        return ("{" + ",\n".join(lines) + "}\n").encode("utf-8", "replace")


def plain(value: Any) -> Any:
    """Return a value of a row as JSON can hold it, texts cut."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= MOST_TEXT else value[: MOST_TEXT - 1] + "…"
        case Mapping():
            return {str(key): plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return plain(str(value))


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

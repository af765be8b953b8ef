"""A line of the event log becomes an event, or goes aside with the reason.

1. A line goes aside, cut to 2,000 characters, when it is
   - `torn`: it begins with ``{`` and has no ``}`` at its end;
   - `not_json`;
   - `unknown_version`: a newer Relay wrote it;
   - `wrong_type`: it is no object, a number is none, or it has no time or no kind of the form ``[a-z_]{1,40}``;
   - `misplaced`: its time is not of the date that it lies under.
2. Blank lines are nothing. Unknown kinds and unknown fields are no error.
3. Older versions are brought up to the newest, one step after the other.
4. Each line is parsed once.

Spark's parser is lenient: a text field takes any JSON value as its text, bytes that are no UTF-8 become ``U+FFFD``, and
of two objects on one line only the first is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from relay_core.records.events import EVENT_SCHEMA_VERSION, EventKind
from spark.days import DAY_MS, Day
from spark.events.schema import EVENT_SCHEMA

ASIDE = "-aside-"
"""Stands for the kind of what goes aside; no kind has a dash."""
ASIDE_SCHEMA = StructType([StructField(name, StringType()) for name in ("segment", "line", "reason")])
"""The lines put aside; `segment` is the file's name as a URI has it."""

_MAX_LINE = 2000
_BAD = "_bad"
_PARSED = StructType([*EVENT_SCHEMA.fields, StructField(_BAD, StringType())])
_NAMES = EVENT_SCHEMA.fieldNames()
_SPACE = " \t\r"


def parse(lines: DataFrame, day: date) -> DataFrame:
    """Return lines (`value`, `segment`) as events; of one that goes aside the reason and the line, and no kind."""
    # A generator is evaluated once for each row; a struct's fields taken one by one might parse once for each field.
    fields = F.inline(F.array(F.from_json("value", _PARSED, {"columnNameOfCorruptRecord": _BAD})))
    found = upgrade(lines.where(F.ltrim("value", F.lit(_SPACE)) != "").select("value", "segment", fields))
    found = found.withColumn("reason", _reason(day))
    is_bad = F.col("reason").isNotNull()
    return found.select(
        *[F.when(is_bad, ASIDE).otherwise(F.col("kind")).alias("kind") if n == "kind" else n for n in _NAMES],
        "segment",
        F.when(is_bad, F.substring("value", 1, _MAX_LINE)).alias("line"),
        "reason",
    )


def upgrade(events: DataFrame) -> DataFrame:
    """Bring events of older versions up to the newest."""
    events = events.withColumn("v", F.coalesce("v", F.lit(EVENT_SCHEMA_VERSION)))
    for version, step in enumerate(STEPS, start=1):
        is_old = F.col("v") == version
        events = events.withColumns(step(is_old) | {"v": F.when(is_old, version + 1).otherwise(F.col("v"))})
    return events


def _from_1(is_old: Column) -> dict[str, Column]:
    detail = F.col("detail")
    told = is_old & (F.col("kind") == "pressure") & detail.rlike(r"^\d{1,9}/\d{1,9}$")
    part = {"depth": 1, "limit": 2}
    changed = {
        name: F.when(told, F.split_part(detail, F.lit("/"), F.lit(at)).try_cast("int")).otherwise(F.col(name))
        for name, at in part.items()
    }
    return changed | {"detail": F.when(~told, detail)}


def _from_2(is_old: Column) -> dict[str, Column]:
    # Only of these two it was the payload's size whatever had happened before.
    is_sure = F.col("kind").isin(EventKind.PUBLISH, EventKind.REFUSED)
    return {"bytes": F.when(~is_old | is_sure, F.col("bytes"))}


STEPS: tuple[Callable[[Column], dict[str, Column]], ...] = (_from_1, _from_2)
"""What changes from each version to the next, where a row is of that version."""


def _reason(day: date) -> Column:
    line, version, time = F.col("value"), F.col("v"), F.col("time")
    start = Day.of(day, 0).start_ms
    whole = line.endswith("}") | F.rtrim(line, F.lit(_SPACE)).endswith("}")
    parsed = F.col(_BAD).isNull()
    return (
        F.when(~whole, F.when(F.ltrim(line, F.lit(_SPACE)).startswith("{"), "torn").otherwise(_unless_json(line)))
        .when(~parsed & F.expr("try_parse_json(value)").isNull(), "not_json")
        .when((version < 1) | (version > EVENT_SCHEMA_VERSION), "unknown_version")
        .when(~parsed | time.isNull() | F.col("kind").isNull() | ~F.col("kind").rlike("^[a-z_]{1,40}$"), "wrong_type")
        .when((time < start) | (time >= start + DAY_MS), "misplaced")
    )


def _unless_json(line: Column) -> Column:
    return F.when(F.try_parse_json(line).isNull(), "not_json").otherwise("wrong_type")

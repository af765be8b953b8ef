"""Parse lines of the event log: a line becomes an event, or goes aside with the reason.

1. A line goes aside, cut to 2,000 characters, when it is
   - `torn`: it begins with ``{`` and does not end with ``}``;
   - `not_json`;
   - `unknown_version`: a newer Relay wrote it;
   - `wrong_type`: it is not an object, a number is not numeric, or its time or a kind ``[a-z_]{1,40}`` is missing;
   - `misplaced`: its time is not within the date of its directory.
2. Blank lines are ignored. Unknown kinds and unknown fields are accepted.
3. Older versions are upgraded to the newest, step by step.
4. Each line is parsed once.

Spark's parser is lenient: a text field accepts any JSON value as text, invalid UTF-8 becomes ``U+FFFD``, and of two
objects on one line only the first is read.
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
"""The kind of bad lines; no real kind has a dash."""
ASIDE_SCHEMA = StructType([StructField(name, StringType()) for name in ("segment", "line", "reason")])
"""The columns of bad lines; `segment` is the file's name, URI-encoded."""

_MAX_LINE = 2000
_BAD = "_bad"
_PARSED = StructType([*EVENT_SCHEMA.fields, StructField(_BAD, StringType())])
_NAMES = EVENT_SCHEMA.fieldNames()
_SPACE = " \t\r"


def parse(lines: DataFrame, day: date) -> DataFrame:
    """Return lines (`value`, `segment`) as events; a bad line has the kind `ASIDE`, its reason and its text."""
    # A generator is evaluated once per row; selecting the fields of a struct might parse once per field.
    fields = F.inline(F.array(F.from_json("value", _PARSED, {"columnNameOfCorruptRecord": _BAD})))
    events = upgrade(lines.where(F.ltrim("value", F.lit(_SPACE)) != "").select("value", "segment", fields))
    events = events.withColumn("reason", _reason(day))
    is_bad = F.col("reason").isNotNull()
    return events.select(
        *[F.when(is_bad, ASIDE).otherwise(F.col("kind")).alias("kind") if name == "kind" else name for name in _NAMES],
        "segment",
        F.when(is_bad, F.substring("value", 1, _MAX_LINE)).alias("line"),
        "reason",
    )


def upgrade(events: DataFrame) -> DataFrame:
    """Upgrade events of older versions to the newest."""
    events = events.withColumn("v", F.coalesce("v", F.lit(EVENT_SCHEMA_VERSION)))
    for version, step in enumerate(STEPS, start=1):
        is_old = F.col("v") == version
        events = events.withColumns(step(is_old) | {"v": F.when(is_old, version + 1).otherwise(F.col("v"))})
    return events


def _from_1(is_old: Column) -> dict[str, Column]:
    detail = F.col("detail")
    has_depth = is_old & (F.col("kind") == "pressure") & detail.rlike(r"^\d{1,9}/\d{1,9}$")
    part = {"depth": 1, "limit": 2}
    changed = {
        name: F.when(has_depth, F.split_part(detail, F.lit("/"), F.lit(at)).try_cast("int")).otherwise(F.col(name))
        for name, at in part.items()
    }
    return changed | {"detail": F.when(~has_depth, detail)}


def _from_2(is_old: Column) -> dict[str, Column]:
    # Only in these two kinds was it always the size of the payload.
    is_payload_size = F.col("kind").isin(EventKind.PUBLISH, EventKind.REFUSED)
    return {"bytes": F.when(~is_old | is_payload_size, F.col("bytes"))}


STEPS: tuple[Callable[[Column], dict[str, Column]], ...] = (_from_1, _from_2)
"""The column changes from each version to the next, for rows of the old version."""


def _reason(day: date) -> Column:
    line, version, time = F.col("value"), F.col("v"), F.col("time")
    start = Day.of(day, 0).start_ms
    whole = line.endswith("}") | F.rtrim(line, F.lit(_SPACE)).endswith("}")
    parsed = F.col(_BAD).isNull()
    return (
        F.when(~whole & F.ltrim(line, F.lit(_SPACE)).startswith("{"), "torn")
        .when((~whole | ~parsed) & F.try_parse_json(line).isNull(), "not_json")
        .when(~whole, "wrong_type")
        .when((version < 1) | (version > EVENT_SCHEMA_VERSION), "unknown_version")
        .when(~parsed | time.isNull() | F.col("kind").isNull() | ~F.col("kind").rlike("^[a-z_]{1,40}$"), "wrong_type")
        .when((time < start) | (time >= start + DAY_MS), "misplaced")
    )

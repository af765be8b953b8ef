"""Spark's columns are the event log's fields."""

from __future__ import annotations

import types
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from relay_core.records.events import Event
from spark.events.schema import EVENT_SCHEMA


def differences(schema: StructType) -> list[str]:
    """Return how a schema differs from `Event`: by name, order, and whether a column is text or number."""
    hints = get_type_hints(Event, include_extras=True)
    wanted = [(field.alias or name, _is_text(hints[name])) for name, field in Event.model_fields.items()]
    found = [(field.name, isinstance(field.dataType, StringType)) for field in schema.fields]
    odd = [f.name for f in schema.fields if not isinstance(f.dataType, StringType | LongType | IntegerType)]
    return (
        [f"{a} is not {b}" for a, b in zip(wanted, found, strict=False) if a != b]
        + odd
        + ([] if len(wanted) == len(found) else [f"{len(found)} columns for {len(wanted)} fields"])
    )


def _is_text(hint: object) -> bool:
    if get_origin(hint) is Annotated:
        return _is_text(get_args(hint)[0])
    if get_origin(hint) is types.UnionType or get_args(hint):
        return any(_is_text(part) for part in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, str)


def test_the_columns_are_the_events_fields() -> None:
    assert differences(EVENT_SCHEMA) == []


def test_every_column_may_be_empty() -> None:
    assert all(field.nullable for field in EVENT_SCHEMA.fields)


FIELDS = EVENT_SCHEMA.fields


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(FIELDS[:-1], id="one is missing"),
        pytest.param([*FIELDS, StructField("more", StringType())], id="one too many"),
        pytest.param([FIELDS[1], FIELDS[0], *FIELDS[2:]], id="another order"),
        pytest.param([*FIELDS[:-1], StructField("limit", StringType())], id="a number as text"),
        pytest.param([*FIELDS[:3], StructField("messageId", LongType()), *FIELDS[4:]], id="a text as number"),
        pytest.param([*FIELDS[:3], StructField("message_id", StringType()), *FIELDS[4:]], id="another name"),
    ],
)
def test_a_schema_that_differs_is_found(fields: list[StructField]) -> None:
    assert differences(StructType(fields))

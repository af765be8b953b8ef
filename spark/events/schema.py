"""The event log's columns in Spark: the fields of `relay_core.records.events.Event`, under their names on disk.

Columns keep these camelCase names from the log through the tables to report.json.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from relay_core.records.events import Event

_INTEGERS = frozenset({"v", "hopCount", "callsLeft", "depth", "limit"})
_LONGS = frozenset({"time", "storeUs", "queueUs", "handleUs", "totalUs", "bytes"})


def _type_of(column: str) -> DataType:
    return IntegerType() if column in _INTEGERS else LongType() if column in _LONGS else StringType()


EVENT_SCHEMA = StructType(
    [StructField(name, _type_of(name)) for name in (field.alias or key for key, field in Event.model_fields.items())]
)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows; unlike `createDataFrame([])`, it needs no Python on the workers."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return spark.range(0).select(*columns)

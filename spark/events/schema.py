"""The event log's columns in Spark.

`EVENT_SCHEMA` mirrors the fields of `relay_core.records.events.Event`; a test compares them.
Columns keep their names on disk (camelCase), from the log through the tables to report.json.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

EVENT_SCHEMA = StructType(
    [
        StructField("v", IntegerType()),
        StructField("time", LongType()),
        StructField("kind", StringType()),
        StructField("messageId", StringType()),
        StructField("traceId", StringType()),
        StructField("parentId", StringType()),
        StructField("subject", StringType()),
        StructField("sender", StringType()),
        StructField("target", StringType()),
        StructField("targetKind", StringType()),
        StructField("status", StringType()),
        StructField("code", StringType()),
        StructField("storeUs", LongType()),
        StructField("queueUs", LongType()),
        StructField("handleUs", LongType()),
        StructField("totalUs", LongType()),
        StructField("hopCount", IntegerType()),
        StructField("callsLeft", IntegerType()),
        StructField("bytes", LongType()),
        StructField("adapter", StringType()),
        StructField("detail", StringType()),
        StructField("depth", IntegerType()),
        StructField("limit", IntegerType()),
    ]
)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows; unlike `createDataFrame([])`, without a Python on the workers."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields]
    return spark.range(0).select(*columns)

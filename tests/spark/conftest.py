"""One Spark session for all the tests of a worker, small and without code generation: starting is what costs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.engine.session import open_session

# Making the class-data archive takes a core for a minute, which a few short sessions do not win back. Tests of the
# archive have a cache of their own.
os.environ["XDG_CACHE_HOME"] = os.devnull


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the session; tests must not stop it, and must name temporary views after themselves."""
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.default.parallelism": "1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    with open_session("tests", master="local[1]", conf=settings) as session:
        yield session

"""``python -m benchmarks.duckdb_tables DATA_DIR DAY``: the tables of a nightly report, made by DuckDB.

From the same Parquet files, with the same shared passes, written as Parquet. The tables that hold the time (traffic,
steps, latency, conversations) have the same rows as Spark's; the small ones leave out a few columns.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

TABLES = (
    "conversations",
    "hours",
    "throughput",
    "senders",
    "refusals",
    "latency",
    "dead_letters",
    "pressure",
    "breakers",
    "adapters",
    "jobs",
)


def main(data_dir: Path, day: str) -> None:
    """Make every table and write it to a directory that goes at the end."""
    try:
        duckdb = importlib.import_module("duckdb")
    except ModuleNotFoundError:
        sys.exit("the comparison needs DuckDB: pip install duckdb")
    statements = Path(__file__).with_suffix(".sql").read_text()
    with tempfile.TemporaryDirectory() as directory, duckdb.connect() as db:
        db.execute(f"SET VARIABLE root = '{data_dir}/reports/tables/events'; SET VARIABLE day = '{day}'; {statements}")
        for table in TABLES:
            db.execute(f"COPY {table} TO '{directory}/{table}.parquet'")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

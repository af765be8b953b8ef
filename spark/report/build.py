"""Put a report together: what the nightly run has of a day in, a `NightlyReport` out. Pure.

1. Values that JSON cannot hold, and texts that are too long, end here: nothing behind meets them.
2. The report stays below `MOST_BYTES`, whatever the tables hold: rows are left out from the end of each table, alike
   for all, and every table says how many rows it has in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from relay_core.protocol.report import VERSION, NightlyReport, ReportTable
from spark.days import Day
from spark.report.findings import find, needs_attention
from spark.report.headline import called, headline, metric_of
from spark.report.inputs import ReportInputs, Row, Table, counts_of, plain
from spark.report.layout import LAYOUT, STEPS, TableLayout
from spark.report.plots import draw

MOST_BYTES = 300_000


def build(
    day: Day,
    tables: Mapping[str, Table],
    daily: Sequence[Row],
    history: Sequence[Row],
    ingest: Mapping[str, Any],
    *,
    made_at_ms: int,
    took_secs: float,
) -> NightlyReport:
    """Return the report of a day; a table that was not made is left out."""
    tables = {name: Table(plain(table.rows), table.total) for name, table in tables.items()}
    seen = ReportInputs(day, tables, plain(daily), plain(history), ingest)
    attention = find(seen)
    report = NightlyReport(
        version=VERSION,
        date=day.date.isoformat(),
        complete=day.is_over,
        until=_iso(day.until_ms),
        made_at=_iso(made_at_ms),
        took_secs=round(took_secs, 1),
        events=int(ingest.get("events") or 0),
        ingested_at=int(ingest.get("ingestedAt") or 0),
        attention_count=sum(map(needs_attention, attention)),
        attention=attention,
        headline=headline(seen),
        plots=draw(seen),
        tables={shown.name: _table(shown, tables[shown.name]) for shown in LAYOUT if shown.name in tables},
        data={
            "events": int(ingest.get("events") or 0),
            "segments": int(ingest.get("segments") or 0),
            "badLines": counts_of(ingest, "badLines"),
            "unknownKinds": counts_of(ingest, "unknownKinds"),
        },
    )
    most = max((len(table.rows) for table in report.tables.values()), default=0)
    while most > 1 and len(report.to_json()) > MOST_BYTES:
        most = most * 3 // 4
        fewer = {name: table.model_copy(update={"rows": table.rows[:most]}) for name, table in report.tables.items()}
        report = report.model_copy(update={"tables": fewer})
    return report


def _table(shown: TableLayout, table: Table) -> ReportTable:
    return ReportTable(
        title=shown.title,
        about=shown.about,
        columns=list(shown.columns),
        bar=shown.bar,
        rows=[_row(shown, row) for row in table.rows[: shown.limit]],
        total=table.total,
    )


def _row(shown: TableLayout, row: Row) -> dict[str, Any]:
    """Return a row with the columns in their order, then what else it has."""
    whole = {column.name: row.get(column.name) for column in shown.columns}
    whole |= {name: value for name, value in row.items() if name not in whole}
    if shown.name == "latency":
        whole["step"] = STEPS.get(str(whole["step"]), whole["step"])
    if shown.name == "anomalies":
        name = str(row.get("metric"))
        whole |= {"metric": called(name, str(row.get("key") or "")), "unit": metric_of(name).unit}
    if "name" in whole:
        whole["name"] = whole["name"] or whole.get("target")
    return whole


def _iso(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

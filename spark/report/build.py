"""Build a report: the tables and numbers of a day in, a `NightlyReport` out. Pure.

1. Values that JSON cannot hold and texts that are too long are replaced here, before any other module sees them.
2. The report stays below `MOST_BYTES`: every table is cut to the same number of rows, and states its total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from relay_core.protocol.report import VERSION, NightlyReport, ReportTable
from spark.days import Day
from spark.report.findings import find, needs_attention
from spark.report.headline import headline, metric_name, metric_of
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
    """Return the report of a day; a table that was not made is omitted."""
    tables = {name: Table(plain(table.rows), table.total) for name, table in tables.items()}
    inputs = ReportInputs(day, tables, plain(daily), plain(history), ingest)
    findings = find(inputs)
    report = NightlyReport(
        version=VERSION,
        date=day.date.isoformat(),
        complete=day.is_over,
        until=_iso(day.until_ms),
        made_at=_iso(made_at_ms),
        took_secs=round(took_secs, 1),
        events=int(ingest.get("events") or 0),
        ingested_at=int(ingest.get("ingestedAt") or 0),
        attention_count=sum(map(needs_attention, findings)),
        attention=findings,
        headline=headline(inputs),
        plots=draw(inputs),
        tables={layout.name: _table(layout, tables[layout.name]) for layout in LAYOUT if layout.name in tables},
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


def _table(layout: TableLayout, table: Table) -> ReportTable:
    return ReportTable(
        title=layout.title,
        about=layout.about,
        columns=list(layout.columns),
        bar=layout.bar,
        rows=[_row(layout, row) for row in table.rows[: layout.limit]],
        total=table.total,
    )


def _row(layout: TableLayout, row: Row) -> dict[str, Any]:
    """Return a row with the layout's columns first, then its other keys."""
    whole = {column.name: row.get(column.name) for column in layout.columns}
    whole |= {name: value for name, value in row.items() if name not in whole}
    if layout.name == "latency":
        whole["step"] = STEPS.get(str(whole["step"]), whole["step"])
    if layout.name == "anomalies":
        name = str(row.get("metric"))
        whole |= {"metric": metric_name(name, str(row.get("key") or "")), "unit": metric_of(name).unit}
    if "name" in whole:
        whole["name"] = whole["name"] or whole.get("target")
    return whole


def _iso(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""The nightly reports, as Spark has left them: ``reports/date=YYYY-MM-DD/report.json``. No JVM is needed to read one.

1. A report is swapped in when it is complete, so whatever lies under such a name can be read.
2. The first line of a report is its head (protocol/report.py): listing reports reads that line alone, and a report
   that begins otherwise is listed without what a head would say.

Blocks.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from relay_core.errors import NotFound, StorageError
from relay_core.protocol.frames import encode_result
from relay_core.protocol.reporting import Report, ReportContent

MAX_BYTES = 3 * 1024 * 1024
"""Of one report: it must fit into a frame."""

_HEAD_BYTES = 2048
_NAME = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


def find_reports(directory: Path) -> list[Report]:
    """Return the reports there are, newest first."""
    found = []
    for path in directory.glob("date=*/report.json"):
        name = _NAME.fullmatch(path.parent.name)
        with suppress(OSError):  # it was removed meanwhile, or is just being replaced
            if name is not None and path.is_file():
                found.append(_listed(path, name[1]))
    return sorted(found, key=lambda report: report.date, reverse=True)


def _listed(path: Path, date: str) -> Report:
    about, head = path.stat(), _read_head(path)
    whole, events, attention = (head.get(key) for key in ("complete", "events", "attentionCount"))
    return Report(
        date=date,
        made_at=int(about.st_mtime * 1000),
        bytes=about.st_size,
        complete=whole if isinstance(whole, bool) else None,
        events=events if _is_count(events) else None,
        attention=attention if _is_count(attention) else None,
    )


def _read_head(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            head = orjson.loads(file.readline(_HEAD_BYTES).rstrip().removesuffix(b",") + b"}")
    except (OSError, ValueError):
        return {}
    return head if isinstance(head, dict) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_report(directory: Path, date: str | None) -> ReportContent:
    """Return the report of a day, or the newest.

    Raises:
        NotFound: if there is none.
        StorageError: if it cannot be read.
    """
    if date is None:
        reports = find_reports(directory)
        if not reports:
            raise NotFound("no report yet: make one with 'relay report run'", what="report")
        date = reports[0].date
    path = directory / f"date={date}" / "report.json"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise StorageError(f"{path} is larger than {MAX_BYTES} bytes", path=str(path))
        report = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"no report of {date}: 'relay report list' shows those there are", what=date) from None
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}", path=str(path)) from error
    if not isinstance(report, dict):
        raise StorageError(f"{path} is no report", path=str(path))
    content = ReportContent(date=date, report=report)
    try:
        encode_result(0, content)
    except (TypeError, ValueError) as error:  # JSON that can be read may still be nested too deep to be written
        raise StorageError(f"{path} cannot be sent: {error}", path=str(path)) from error
    return content

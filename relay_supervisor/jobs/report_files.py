"""The nightly reports that Spark has written: ``reports/date=YYYY-MM-DD/report.json``. Reading them needs no JVM.

1. A report is renamed into place when it is complete, so a file with this name can be read.
2. The first line of a report is its head (protocol/report.py). Listing reads only that line; a report without a valid
   head is listed without those fields.

All functions block.
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
"""The maximum size of a report: it must fit into a frame."""

_HEAD_BYTES = 2048
_NAME = re.compile(r"date=(\d{4}-\d{2}-\d{2})")


def find_reports(directory: Path) -> list[Report]:
    """Return all reports, newest first."""
    found = []
    for path in directory.glob("date=*/report.json"):
        name = _NAME.fullmatch(path.parent.name)
        with suppress(OSError):  # it was removed or is being replaced
            if name is not None and path.is_file():
                found.append(_describe(path, name[1]))
    return sorted(found, key=lambda report: report.date, reverse=True)


def _describe(path: Path, date: str) -> Report:
    status, head = path.stat(), _read_head(path)
    complete, events, attention = (head.get(key) for key in ("complete", "events", "attentionCount"))
    return Report(
        date=date,
        made_at=int(status.st_mtime * 1000),
        bytes=status.st_size,
        complete=complete if isinstance(complete, bool) else None,
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
        NotFound: if it does not exist.
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
        raise NotFound(f"no report of {date}: 'relay report list' lists the reports", what=date) from None
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}", path=str(path)) from error
    if not isinstance(report, dict):
        raise StorageError(f"{path} is not a report", path=str(path))
    content = ReportContent(date=date, report=report)
    try:
        encode_result(0, content)
    except (TypeError, ValueError) as error:  # such as nesting that can be decoded but not encoded
        raise StorageError(f"{path} cannot be sent: {error}", path=str(path)) from error
    return content

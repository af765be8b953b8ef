"""What a run says of itself while it is under way."""

from __future__ import annotations

import io
import json

from spark.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_programs_get_json_lines_in_which_the_share_never_falls() -> None:
    out = io.StringIO()
    progress = Progress(out)
    progress.report("ingest", 0.25)
    progress.report("tables", 0.2, "latency")
    progress.report("report", 7)
    progress.end({"reports": ["2026-03-14"], "events": 7})
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"progress": {"stage": "ingest", "detail": None, "done": 0.25}},
        {"progress": {"stage": "tables", "detail": "latency", "done": 0.25}},
        {"progress": {"stage": "report", "detail": None, "done": 1.0}},
        {"result": {"reports": ["2026-03-14"], "events": 7}},
    ]


def test_people_get_words() -> None:
    out = Terminal()
    progress = Progress(out)
    progress.report("tables", 0.2, "latency")
    progress.end({"reports": ["2026-03-14", "2026-03-15"], "events": 7})
    assert out.getvalue() == " 20%  tables: latency\nreports: 2026-03-14, 2026-03-15\nevents: 7\n"

"""Hand-made days: what the nightly run hands to the report, without Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from relay_core.protocol.report import NightlyReport
from spark.days import Day
from spark.report.build import build
from spark.report.inputs import ReportInputs, Row, Table

DATE = date(2026, 3, 14)
START = int(datetime(2026, 3, 14, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000
TRACE = "01KA5QZ8W3N6T4V9Y2B7C1D0EF"
HOSTILE = "</td><script>alert(1)</script>\"'&\u202e\x1b[2J\x00" + "W" * 400 + "a" + "\u0301" * 50


def a_day(hours: float = 24) -> Day:
    """Return a day that is over, or has come so far."""
    return Day(DATE, START + int(hours * HOUR))


def table(*rows: Row, total: int | None = None) -> Table:
    return Table(rows, len(rows) if total is None else total)


def numbers(**values: float) -> list[Row]:
    return [{"metric": metric, "key": "", "value": value} for metric, value in values.items()]


def before(**values: float | Iterable[float]) -> list[Row]:
    """Return the numbers of the days before: of all 14 the same, or one by one up to yesterday."""
    rows: list[Row] = []
    for metric, given in values.items():
        days = [given] * 14 if isinstance(given, int | float) else list(given)
        for back, value in enumerate(reversed(days), 1):
            day = DATE - timedelta(days=back)
            rows.append({"date": day.isoformat(), "metric": metric, "key": "", "value": value})
    return rows


def seen(
    tables: Mapping[str, Table] | None = None, *, day: Day | None = None, ingest: Mapping[str, Any] | None = None
) -> ReportInputs:
    """Return a day like those before it, with these tables."""
    return ReportInputs(day or a_day(), tables or {}, numbers(messages=10), before(messages=10), ingest or {})


def made(
    tables: Mapping[str, Table],
    daily: list[Row],
    history: list[Row],
    ingest: Mapping[str, Any],
    day: Day | None = None,
) -> NightlyReport:
    return build(day or a_day(), tables, daily, history, ingest, made_at_ms=START + 26 * HOUR, took_secs=14.23)


def _wave(hour: int) -> int:
    return int(2400 + 2100 * math.sin((hour - 8) / 24 * 2 * math.pi))


AGENTS = (
    "relay.agent.planner",
    "relay.agent.coder",
    "relay.agent.reviewer",
    "relay.human.console",
    "relay.system.cron",
)
RICH_TABLES: dict[str, Table] = {
    "hours": table(
        *(
            {"hour": h, "messages": _wave(h), "refused": 412 if h == 14 else h % 5, "deadLetters": [0, 0, 3, 1][h % 4]}
            for h in range(24)
        )
    ),
    "throughput": table(
        *(
            {
                "hour": 23 - n % 24,
                "subject": f"relay.agent.worker-{n % 9}",
                "sender": AGENTS[n % 5],
                "messages": 4400 - n * 37,
                "bytes": (4400 - n * 37) * 913,
                "refused": n % 7,
            }
            for n in range(100)
        ),
        total=1932,
    ),
    "latency": table(
        *(
            {
                "target": f"{n:012x}",
                "name": f"relay.agent.worker-{n}" if n else "claude-code",
                "targetKind": "endpoint" if n else "adapter",
                "step": step,
                "messages": 9000 - n * 700,
                "p50Us": int(base * part),
                "p95Us": int(base * part * 6.5),
                "p99Us": int(base * part * 14),
                "maxUs": int(base * part * 60),
            }
            for n, base in enumerate((4_200_000, 91_000, 52_000, 20_000, 9_100, 5_000, 2_100, 900, 400))
            for step, part in (("total", 1), ("handle", 0.7), ("queue", 0.25))
        )
    ),
    "refusals": table(
        {"code": "rate_limited", "sender": AGENTS[1], "subject": "relay.agent.reviewer", "target": "*", "refused": 412,
         "firstAt": "14:02", "lastAt": "14:09"},
        {"code": "circuit_open", "sender": AGENTS[0], "subject": "relay.out.telegram.42", "target": "ab" * 6,
         "refused": 31, "firstAt": "20:11", "lastAt": "23:59"},
        {"code": "access_denied", "sender": "relay.guest.bob", "subject": "relay.agent.planner", "target": "*",
         "refused": 9, "firstAt": "03:30", "lastAt": "03:31"},
        {"code": "backpressure", "sender": AGENTS[0], "subject": "relay.agent.worker-3", "target": "cd" * 6,
         "refused": 4, "firstAt": "14:05", "lastAt": "14:06"},
    ),
    "dead_letters": table(
        {"code": "handler_failed", "target": "01" * 6, "name": "relay.agent.worker-3", "letters": 34, "replayed": 12,
         "replaced": 0, "purged": 0, "standing": 22, "youngerThanHour": 2, "youngerThanDay": 20, "youngerThanWeek": 0,
         "older": 0},
        {"code": "no_match", "target": "02" * 6, "name": "relay.agent.retired", "letters": 0, "replayed": 0,
         "replaced": 0, "purged": 0, "standing": 8, "youngerThanHour": 0, "youngerThanDay": 0, "youngerThanWeek": 0,
         "older": 8},
        {"code": "expired", "target": "03" * 6, "name": "relay.agent.slow", "letters": 3, "replayed": 0,
         "replaced": 1, "purged": 2, "standing": 0, "youngerThanHour": 0, "youngerThanDay": 0, "youngerThanWeek": 0,
         "older": 0},
    ),
    "senders": table(
        *(
            {"sender": name, "messages": 21000 - n * 4000, "bytes": (21000 - n * 4000) * 913, "peakMinute": "14:05",
             "peakMessages": [120, 104, 85, 9, 1][n], "limitPerMinute": 100.0 if n != 0 else None,
             "peakShare": [None, 1.04, 0.85, 0.09, 0.01][n], "refused": [0, 412, 0, 0, 0][n],
             "rateLimited": [0, 412, 0, 0, 0][n], "refusedShare": [0.0, 0.0237, 0.0, 0.0, 0.0][n]}
            for n, name in enumerate(AGENTS)
        )
    ),
    "pressure": table(
        {"target": "cd" * 6, "name": "relay.agent.worker-3", "episodes": 2, "aboveSecs": 754.2, "worstDepth": 1000,
         "limit": 1000, "worstShare": 1.0, "aboveAtEnd": False},
        {"target": "ce" * 6, "name": "relay.agent.worker-4", "episodes": 1, "aboveSecs": 61.0, "worstDepth": 812,
         "limit": 1000, "worstShare": 0.812, "aboveAtEnd": False},
    ),
    "breakers": table(
        {"target": "ab" * 6, "name": "telegram", "openings": 3, "openSecs": 7830.0, "halfOpenSecs": 21.0,
         "longestOpenSecs": 7200.0, "openAtEnd": True, "lastDetail": "5 failures in a row: 502 Bad Gateway"},
    ),
    "adapters": table(
        {"adapter": "telegram", "handled": 1201, "failed": 77, "refused": 31, "successShare": 0.9398, "p50Us": 182_000,
         "p95Us": 910_000, "downSecs": 8100.0, "outages": 2, "stateAtEnd": "error",
         "lastDetail": "502 Bad Gateway from api.telegram.org"},
        {"adapter": "claude-code", "handled": 9000, "failed": 2, "refused": 0, "successShare": 0.9998,
         "p50Us": 2_940_000, "p95Us": 19_100_000, "downSecs": 0.0, "outages": 0, "stateAtEnd": "connected",
         "lastDetail": None},
    ),
    "conversations": table(
        {"traceId": TRACE, "sender": AGENTS[0], "subject": "relay.agent.coder", "firstAt": START + 9 * HOUR + 184_000,
         "messages": 64, "depth": 5, "fanOut": 12, "durationMs": 184_000, "callsSpent": 40, "loopsStopped": 1},
        {"traceId": "01KA5QZ8W3N6T4V9Y2B7C1D0EG", "sender": AGENTS[3], "subject": "relay.agent.planner",
         "firstAt": START + 12 * HOUR, "messages": 31, "depth": 3, "fanOut": 4, "durationMs": 95_400, "callsSpent": 17,
         "loopsStopped": 0},
        total=5120,
    ),
    "jobs": table(
        {"job": "expire", "runs": 1440, "ok": 1440, "failed": 0, "timedOut": 0, "cancelled": 0, "p50Us": 900,
         "maxUs": 41_000, "lastOutcome": "ok", "lastDetail": None},
        {"job": "backup", "runs": 1, "ok": 0, "failed": 1, "timedOut": 0, "cancelled": 0, "p50Us": 3_100_000,
         "maxUs": 3_100_000, "lastOutcome": "failed", "lastDetail": "no space left on device"},
    ),
    "anomalies": table(
        {"metric": "refusals", "key": "", "value": 460.0, "usual": 22.0, "spread": 6.0, "score": 49.2,
         "direction": "up", "because": [{"metric": "refusalsBySender", "key": AGENTS[1], "value": 412.0, "usual": 0.0},
                     {"metric": "refusalsBySender", "key": AGENTS[0], "value": 35.0, "usual": 20.0}]},
        {"metric": "p95TotalUs", "key": "claude-code", "value": 1_900_000.0, "usual": 310_000.0, "spread": 2e4,
         "score": 31.0, "direction": "up", "because": []},
    ),
}  # fmt: skip
RICH_DAILY = numbers(
    messages=57_600, bytes=52_588_800, refusals=460, deadLetters=37, standingLetters=30, p95TotalUs=1_900_000.0,
    breakerOpenSecs=7830.0, adapterDownSecs=8100.0,
)  # fmt: skip
RICH_HISTORY = before(
    messages=[
        51_000,
        49_200,
        12_000,
        11_300,
        52_400,
        53_000,
        50_100,
        54_700,
        52_000,
        13_100,
        12_500,
        55_000,
        51_800,
        53_300,
    ],
    bytes=46_000_000,
    refusals=[20, 22, 4, 30, 22, 19, 25, 22, 21, 3, 5, 26, 24, 22],
    deadLetters=[3, 5, 0, 0, 2, 41, 3, 2, 4, 0, 0, 2, 3, 1],
    standingLetters=[8] * 14,
    p95TotalUs=[310_000.0, 305_000.0, 290_000.0, 330_000.0] * 3 + [310_000.0, 312_000.0],
)
RICH_INGEST = {
    "events": 231_904,
    "segments": 26,
    "badLines": {"not_json": 3, "torn": 1},
    "unknownKinds": {"lease": 12},
}


def a_rich_day() -> NightlyReport:
    return made(RICH_TABLES, RICH_DAILY, RICH_HISTORY, RICH_INGEST)


def an_empty_day() -> NightlyReport:
    return made({name: table() for name in RICH_TABLES}, numbers(messages=0), before(messages=0), {})


def a_day_of_one_event() -> NightlyReport:
    row = {"hour": 7, "subject": "relay.a", "sender": "relay.b", "messages": 1, "bytes": 12, "refused": 0}
    return made(
        {"throughput": table(row), "hours": table(row)}, numbers(messages=1, bytes=12), [], {"events": 1, "segments": 1}
    )


def an_unfinished_day() -> NightlyReport:
    return made(RICH_TABLES, RICH_DAILY, RICH_HISTORY, RICH_INGEST, a_day(hours=14.34))


def a_first_day() -> NightlyReport:
    return made(RICH_TABLES | {"anomalies": table()}, RICH_DAILY, [], RICH_INGEST)


def a_hostile_day() -> NightlyReport:
    """Return a rich day in which every text that strangers can choose is hostile, and numbers are odd."""

    def spoiled(row: Row) -> Row:
        odd: dict[str, Any] = {"worstShare": math.nan, "peakShare": math.inf, "openSecs": -5.0}
        return {
            name: odd[name]
            if name in odd
            else HOSTILE
            if isinstance(value, str) and name not in ("metric", "direction", "step", "stateAtEnd", "lastOutcome")
            else value
            for name, value in row.items()
        }

    tables = {name: Table([spoiled(row) for row in shown.rows], shown.total) for name, shown in RICH_TABLES.items()}
    ingest = RICH_INGEST | {"badLines": {HOSTILE: 3}, "unknownKinds": {HOSTILE: 4}}
    return made(tables, RICH_DAILY, RICH_HISTORY, ingest)


DAYS = {
    "rich": a_rich_day,
    "empty": an_empty_day,
    "one event": a_day_of_one_event,
    "not over": an_unfinished_day,
    "first": a_first_day,
    "hostile": a_hostile_day,
}

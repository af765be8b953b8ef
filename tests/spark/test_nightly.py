"""A night, and the nights after it: what each makes, leaves alone, hands on and replaces."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from relay_core.records.events import Event
from spark.days import DAY_MS, Day, Request
from spark.nightly import Failed, _cause, nightly
from spark.progress import Progress
from spark.settings import Settings
from spark.storage.locations import Storage

DATE = date(2026, 3, 14)
START = Day.of(DATE, 2**53).start_ms
NEXT_NIGHT = START + DAY_MS + 2 * 3_600_000
A = "relay.agent.a"


@dataclass
class Bus:
    """A data directory with an event log, and the nights on it."""

    directory: Path
    spark: SparkSession
    started: int = 0
    """How often Spark was asked for."""
    said: list[dict[str, Any]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings(events=str(self.directory / "events"), output=str(self.directory / "reports"))

    def log(self, name: str, *events: dict[str, Any], day: date = DATE) -> None:
        """Add a sealed segment; an event's time is in milliseconds of its day."""
        segment = self.directory / "events" / f"date={day}" / name
        segment.parent.mkdir(parents=True, exist_ok=True)
        start = Day.of(day, 2**53).start_ms
        lines = [Event(**event | {"time": start + event.get("time", 0)}) for event in events]
        segment.write_text("".join(f"{line.model_dump_json(by_alias=True, exclude_none=True)}\n" for line in lines))

    def night(self, request: Request | None = None, *, now_ms: int = NEXT_NIGHT, **settings: Any) -> list[str]:
        """Run, and return the days whose reports were made."""
        out = io.StringIO()
        whole = self.settings.model_copy(update=settings)
        made = nightly(whole, request or Request(), Progress(out), now_ms=now_ms, session=self._session)
        self.said = [json.loads(line) for line in out.getvalue().splitlines()]
        return [str(day) for day in made]

    def report(self, day: date = DATE) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.path(day).read_bytes())
        return report

    def path(self, day: date = DATE) -> Path:
        return self.directory / "reports" / f"date={day}" / "report.json"

    def number(self, name: str, day: date = DATE) -> float:
        value: float = next(number["value"] for number in self.report(day)["headline"] if number["name"] == name)
        return value

    @contextmanager
    def _session(self, settings: Settings, light: bool) -> Iterator[SparkSession]:
        self.started += 1
        yield self.spark


@pytest.fixture
def bus(tmp_path: Path, spark: SparkSession) -> Bus:
    return Bus(tmp_path, spark)


@pytest.fixture
def quiet_bus(bus: Bus) -> Bus:
    (bus.directory / "events").mkdir()
    return bus


def message(number: int, **more: Any) -> dict[str, Any]:
    about = {"message_id": f"m{number}", "trace_id": f"m{number}", "subject": A, "sender": "relay.agent.s"}
    return about | {"kind": "publish", "bytes": 10, "time": number * 1000} | more


DEAD = {"kind": "dead_letter", "status": "failed", "code": "handler_failed", "target": "a" * 12}


@pytest.mark.timeout(600)
def test_nights_that_follow_each_other(bus: Bus) -> None:
    """One long story, because a night is what costs, and each begins with what the one before has left."""
    tomorrow = DATE + timedelta(days=1)
    bus.log("01-1-1.jsonl", *map(message, range(5)), message(1, **DEAD), {"kind": "bus", "status": "started"})
    bus.log("02-1-1.jsonl", message(9, kind="refused", code="rate_limited", target="*"))
    bus.log("00-1-1.jsonl", message(1), day=tomorrow)

    # The night after makes the report of the day before, and leaves the day that is not over to the next.
    assert bus.night() == [str(DATE)]
    report = bus.report()
    assert (report["date"], report["complete"], report["events"]) == (str(DATE), True, 8)
    assert [bus.number(name) for name in ("messages", "refusals", "deadLetters", "standingLetters")] == [5, 1, 1, 1]
    assert bus.path().with_name("report.html").read_text().startswith("<!doctype html>")
    shares = [line["progress"]["done"] for line in bus.said if "progress" in line]
    assert shares == sorted(shares)
    result = bus.said[-1]["result"]
    assert result == {"reports": [str(DATE)], "events": 8, "badLines": 0, "tookMs": result["tookMs"]}

    # Where nothing is new, Spark is not started, and the report is left alone.
    before = bus.path().stat().st_ino
    assert bus.night() == []
    assert (bus.started, bus.path().stat().st_ino) == (1, before)

    # A late segment brings its day up to date; by hand today is made, too.
    bus.log("03-1-1.jsonl", message(20))
    assert bus.night(Request(today=True)) == [str(DATE), str(tomorrow)]
    assert bus.number("messages") == 6
    assert bus.report(tomorrow)["complete"] is False
    # It begins with what the day before has left open.
    assert [bus.number(name, tomorrow) for name in ("messages", "deadLetters", "standingLetters")] == [1, 0, 1]

    # A day that was not over is made again when it is.
    later = NEXT_NIGHT + DAY_MS
    assert bus.night(now_ms=later) == [str(tomorrow)]
    assert bus.report(tomorrow)["complete"] is True

    # What comes late and stays open is handed on to the days after it.
    bus.log("04-1-1.jsonl", message(2, **DEAD))
    assert bus.night(now_ms=later) == [str(DATE), str(tomorrow)]
    assert [bus.number("standingLetters", day) for day in (DATE, tomorrow)] == [2, 2]

    # Old days, and what dead runs have left, are removed; a clock that is far ahead removes nothing.
    reports = bus.directory / "reports"
    for left in (reports / ".making-date=2026-03-14-1234", reports / "tables" / "daily" / ".making-date=2026-03-14-1"):
        left.mkdir()
    assert bus.night(now_ms=later + 400 * DAY_MS, keep_days=1) == []
    by_day = {str(path.relative_to(reports)) for path in reports.rglob("*date=*")}
    needed = {f"tables/{name}/date={day}" for name in ("carried", "daily") for day in (DATE, tomorrow)}
    whole = {"", "tables/events/"}
    both = {f"{place}date={day}" for place in whole for day in (DATE, tomorrow)}
    assert by_day == both | needed | {f"tables/manifest/date={day}.json" for day in (DATE, tomorrow)}
    bus.log("00-1-1.jsonl", message(1), day=DATE + timedelta(days=2))
    assert bus.night(now_ms=later + DAY_MS, keep_days=1) == [str(DATE + timedelta(days=2))]
    kept = sorted(path.parent.name for path in reports.glob("date=*/report.json"))
    assert kept == [f"date={tomorrow}", f"date={DATE + timedelta(days=2)}"]
    assert (reports / "tables" / "daily" / f"date={DATE}").exists()  # the baseline needs it for longer


# What stops a run


def test_two_runs_do_not_write_to_one_place(quiet_bus: Bus) -> None:
    with Storage(quiet_bus.settings.output).below("tables").lock(), pytest.raises(Failed, match="another run"):
        quiet_bus.night()


def test_a_day_to_come_is_refused(quiet_bus: Bus) -> None:
    with pytest.raises(Failed, match="is in the future"):
        quiet_bus.night(Request(date=DATE + timedelta(days=9)))


def test_an_unknown_scheme_is_refused(quiet_bus: Bus) -> None:
    with pytest.raises(Failed, match="gopher"):
        quiet_bus.night(output="gopher://host/reports")


def test_a_directory_that_cannot_be_written_is_named(quiet_bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(Failed, match=str(tmp_path / "reports")):
        quiet_bus.night(output=str(tmp_path / "reports"))


def test_places_that_would_do_harm_or_nothing_are_refused(bus: Bus, tmp_path: Path) -> None:
    events = tmp_path / "events"
    with pytest.raises(Failed, match="there are no events at"):
        bus.night()
    assert list(tmp_path.iterdir()) == []
    events.mkdir()
    for output in (events, events / "reports"):
        with pytest.raises(Failed, match="cannot be written"):
            bus.night(output=str(output))


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "An error occurred while calling o1.\n: org.x.Failed: no\n\tat a\nCaused by: java.io.IOException: full",
            "java.io.IOException: full",
        ),
        ("An error occurred while calling o1.parquet.\n: org.x.Failed: no", ": org.x.Failed: no"),
        ("[UNRESOLVED_COLUMN] no such column\n'Project", "[UNRESOLVED_COLUMN] no such column"),
        ("", ""),
    ],
    ids=["with a cause", "without", "told by Spark", "nothing"],
)
def test_the_innermost_cause_is_what_is_told(said: str, cause: str) -> None:
    assert _cause(said) == cause

"""Dead letters: births, ends, and the age of those that stand."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.days import Day
from spark.tables.dead_letters import dead_letters
from tests.spark.events import DAY, START, at, events

NOON = Day.of(DAY.date, at(12))


def letter(
    message: str | None, time: int, status: str, code: str | None = "timeout", target: str = "t"
) -> dict[str, Any]:
    kind = "replayed" if status == "new" else "dead_letter"
    about = {"messageId": message, "target": target, "subject": f"s.{target}"}
    return about | {"kind": kind, "time": time, "status": status, "code": code}


def replayed(message: str, time: int, target: str = "t") -> dict[str, Any]:
    return letter(message, time, "new", None, target)


def line(
    code: str | None,
    target: str = "t",
    *,
    letters: int = 0,
    ends: tuple[int, int, int] = (0, 0, 0),
    ages: tuple[int, int, int, int] = (0, 0, 0, 0),
    name: str | None = None,
) -> Row:
    return Row(
        code=code,
        target=target,
        name=name or f"s.{target}",
        letters=letters,
        replayed=ends[0],
        replaced=ends[1],
        purged=ends[2],
        standing=sum(ages),
        youngerThanHour=ages[0],
        youngerThanDay=ages[1],
        youngerThanWeek=ages[2],
        older=ages[3],
    )


def test_a_day_without_events_has_no_dead_letters(spark: SparkSession) -> None:
    table = dead_letters(events(spark), DAY)
    assert table.columns == list(line("a").asDict())
    assertDataFrameEqual(table, [])


def test_each_birth_and_end_counts_once_and_the_last_event_says_what_stands(spark: SparkSession) -> None:
    rows = [
        # Their ends: one of each, out of order and doubled, and one that nothing became of.
        replayed("m1", at(2), "ends"),
        letter("m1", at(1), "failed", target="ends"),
        letter("m2", at(1), "failed", target="ends"),
        letter("m2", at(1), "failed", target="ends"),
        letter("m2", at(3), "replaced", target="ends"),
        letter("m2", at(3), "replaced", target="ends"),
        letter("m3", at(1), "no_subscriber", target="ends"),
        letter("m3", at(1, ms=1), "purged", target="ends"),
        letter("m4", at(1), "failed", target="ends"),
        letter("m5", at(1), "aside", target="ends"),  # no dead letter
        letter(None, at(1), "failed", target="ends"),
        letter("m6", at(12), "failed", target="ends"),  # not before the end
        # The same message at another target is another letter, and an adapter's name is its id.
        letter("m1", at(1), "failed", target="other") | {"adapter": "chat"},
        # Ages at the end, at and around each edge.
        letter("m1", at(11, ms=1), "failed", target="ages"),
        letter("m2", at(11), "failed", target="ages"),
        letter("m3", at(-12, ms=1), "failed", target="ages"),
        letter("m4", at(-12), "failed", target="ages"),
        letter("m5", at(12 - 7 * 24, ms=1), "failed", target="ages"),
        letter("m6", at(12 - 7 * 24), "failed", target="ages"),
        # It dies again after a replay, of another cause, in the very millisecond.
        letter("m1", at(1), "failed", "timeout", "again"),
        replayed("m1", at(2), "again"),
        letter("m1", at(2), "failed", "handler_failed", "again"),
        # One from the day before: its end counts today, its birth does not.
        letter("m1", START - 1, "failed", "timeout", "carried"),
        letter("m1", START, "purged", "timeout", "carried"),
        # One from the day before whose end got lost, as it died once more.
        letter("m1", START - 1, "failed", "timeout", "lost"),
        letter("m1", at(1), "failed", "expired", "lost"),
        # The clock was put back between: the order is the clock's.
        letter("m1", at(5), "failed", "timeout", "clock"),
        replayed("m1", at(4), "clock"),
        # Ends whose births are not known.
        replayed("m1", at(1), "unknown"),
        letter("m2", at(1), "purged", "malformed", "unknown"),
        {"kind": "failed", "messageId": "m1", "target": "t", "status": "failed"},
    ]
    assertDataFrameEqual(
        dead_letters(events(spark, *rows), NOON),
        [
            line("timeout", "ends", letters=4, ends=(1, 1, 1), ages=(0, 1, 0, 0)),
            line("timeout", "other", letters=1, ages=(0, 1, 0, 0), name="chat"),
            line("timeout", "ages", letters=2, ages=(1, 2, 2, 1)),
            line("timeout", "again", letters=1, ends=(1, 0, 0)),
            line("handler_failed", "again", letters=1, ages=(0, 1, 0, 0)),
            line("timeout", "carried", ends=(0, 0, 1)),
            line("expired", "lost", letters=1, ages=(0, 1, 0, 0)),
            line("timeout", "clock", letters=1, ages=(0, 1, 0, 0)),
            line(None, "clock", ends=(1, 0, 0)),
            line(None, "unknown", ends=(1, 0, 0)),
            line("malformed", "unknown", ends=(0, 0, 1)),
        ],
    )

"""A day of events in the shape of the real log, for the benchmarks and tests of `spark/`.

1. Every value is a hash of a message's number and the seed: the same call gives the same day on any machine.
2. Messages come in traces of 1 to 12 (`SHAPES`), as trees with parents and hops. A message is published, stored and
   handled; one in 97 fails and becomes a dead letter instead, one in 997 is stopped as a loop.
3. 200 subjects and 60 senders, so that the first of them has about 13 % and 17 % of the messages. Latencies have a long
   tail. A few subjects belong to adapters.
4. Each kind is a separate range, by time, so a day is written without a shuffle.

As a program: ``python -m benchmarks.rig.spark_events TABLES DATE ROWS``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from datetime import date
from functools import reduce
from itertools import islice
from random import Random
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from relay_core.messages.subjects import subject_hash
from relay_core.records.events import EVENT_SCHEMA_VERSION, EventKind, format_events, make_event
from spark.days import DAY_MS, Day
from spark.engine.session import open_session
from spark.events.manifest import Counts, Manifest, write_manifest
from spark.events.schema import EVENT_SCHEMA
from spark.storage.locations import Storage

SHAPES = (1, 2, 1, 3, 2, 1, 4, 1, 2, 6, 1, 3, 2, 1, 12, 1, 2, 4, 1, 3, 2)
"""The sizes of the traces of one block; the blocks repeat."""
SUBJECTS = 200
SENDERS = 60
ADAPTERS = ("telegram", "webhook", "claude-code")
CALL_BUDGET = 10
LIMIT = 1000

_DEAD_EVERY = 97
_LOOP_EVERY = 997
_EVENTS_OF_A_MESSAGE = 3.1
_ROWS_OF_A_FILE = 1_000_000

_Fields: TypeAlias = dict[str, str | int]

# The position of each message of a block: the root of its trace, its index in the trace, its parent's index, its hops.
# The n-th message of a trace answers the one at (n - 1) // 3, so that each has up to three children.
_BLOCK = [
    {"root": sum(SHAPES[:trace]), "place": place, "parent": max(0, place - 1) // 3, "hops": (place > 0) + (place > 3)}
    for trace, size in enumerate(SHAPES)
    for place in range(size)
]


def generate(spark: SparkSession, rows: int, day: date, seed: int = 1) -> DataFrame:
    """Return about this many events of a day, with EVENT_SCHEMA."""
    return reduce(DataFrame.unionByName, _Generator(spark, rows, day, seed).kinds())


def write_day(events: DataFrame, tables_dir: str, day: date) -> None:
    """Write a day's events as ingest does: ``events/date=D/kind=K/*.parquet``, and the manifest that lists them."""
    tables, home = Storage(tables_dir), f"events/date={day}"
    tables.make(home)
    events.write.mode("overwrite").partitionBy("kind").parquet(tables.uri(home))
    written = events.sparkSession.read.parquet(tables.uri(home)).groupBy("kind")
    rows = written.agg(F.count("*").alias("rows"), F.min("time").alias("first"), F.max("time").alias("last")).collect()
    counts = Counts(
        events=sum(row["rows"] for row in rows),
        first_time=min(row["first"] for row in rows),
        last_time=max(row["last"] for row in rows),
        kinds={row["kind"]: row["rows"] for row in rows},
    )
    files = [name for name in tables.files(home) if name.endswith(".parquet")]
    write_manifest(tables, day, Manifest(files=files, counts=counts))


class _Generator:
    """The events of a day, kind by kind."""

    def __init__(self, spark: SparkSession, rows: int, day: date, seed: int) -> None:
        self._spark = spark
        self._seed = seed
        self._start = Day.of(day, 0).start_ms
        self._count = max(1, int(rows / _EVENTS_OF_A_MESSAGE))
        self._episodes = min(700, rows // 2000)
        self._n, self._sent = F.col("id"), F.col("sent")
        self._is_loop = self._n % _LOOP_EVERY == 11
        self._is_dead = (self._n % _DEAD_EVERY == 5) & ~self._is_loop
        self._messages = self._number_messages()
        hops = F.col("hops")
        self._message = {
            name: F.col(name) for name in ("messageId", "traceId", "parentId", "subject", "sender", "bytes")
        }
        self._message |= {"hopCount": hops, "callsLeft": CALL_BUDGET - hops}
        is_adapter = F.col("number") % 25 == 7
        self._delivery = self._message | {
            "target": _target(F.col("subject")),
            "targetKind": F.when(is_adapter, "adapter").otherwise("endpoint"),
            "adapter": F.when(is_adapter, _pick(ADAPTERS, F.col("number"))),
            "hopCount": hops + 1,
            "callsLeft": CALL_BUDGET - 1 - hops,
        }

    def _number_messages(self) -> DataFrame:
        """Return the messages: spread over the day, those of a trace up to two seconds apart.

        In steps, so that Spark computes each column once.
        """
        n, root, parent, begin, gap = self._n, F.col("root"), F.col("parent"), F.col("begin"), F.col("gap")
        placed = self._range(self._count).select(n, _at(_BLOCK, n).alias("at"))
        traced = placed.select(
            n, "at.place", "at.parent", "at.hops", (n - n % len(_BLOCK) + F.col("at.root")).alias("root")
        )
        timed = traced.select(
            "*",
            (F.floor(root * ((DAY_MS - 60_000) / self._count)) + self._start).alias("begin"),
            (self._hash("gap", root) % 2000 + 5).alias("gap"),
        )
        sent = timed.select("*", (begin + F.col("place") * gap).alias("sent"))
        return sent.select(
            n,
            "sent",
            "hops",
            self._id("id", self._sent, n).alias("messageId"),
            self._id("id", begin, root).alias("traceId"),
            F.when(F.col("place") > 0, self._id("id", begin + parent * gap, root + parent)).alias("parentId"),
            self._zipf("subject", n, SUBJECTS).alias("number"),
            _name("worker", self._zipf("subject", n, SUBJECTS)).alias("subject"),
            _name("sender", self._zipf("sender", n, SENDERS)).alias("sender"),
            self._skewed("bytes", n, 600, 1.0).alias("bytes"),
        )

    def kinds(self) -> list[DataFrame]:
        """Return the events, a frame for each kind."""
        return [
            self._publish(),
            self._stored(),
            self._handled(),
            *self._dead(),
            *self._refused(),
            *self._operations(),
        ]

    def _publish(self) -> DataFrame:
        status = F.when(self._is_loop, "failed").otherwise("accepted")
        return self._events("publish", self._messages, self._message | {"time": self._sent, "status": status})

    def _stored(self) -> DataFrame:
        took = self._skewed("store", self._n, 300, 0.6)
        more = {"time": self._sent, "status": F.lit("new"), "storeUs": took, "totalUs": took}
        return self._events("stored", self._messages.where(~self._is_loop), self._delivery | more)

    def _handled(self) -> DataFrame:
        partial = F.when(self._n % 500 == 3, "partial").otherwise("done")
        rows = self._messages.where(~self._is_loop & ~self._is_dead)
        return self._events("handled", rows, self._delivery | self._steps() | {"status": partial})

    def _dead(self) -> Iterator[DataFrame]:
        dead, loops = self._messages.where(self._is_dead), self._messages.where(self._is_loop)
        code = _pick(("handler_failed", "handler_failed", "timeout", "adapter_failed", "expired"), self._n)
        failed = self._delivery | self._steps() | {"status": F.lit("failed"), "code": code}
        failed["detail"] = F.format_string("the handler said %d", self._hash("detail", self._n) % 50)
        letter = {"code": failed["code"], "time": F.least(self._sent + 3_600_000, F.lit(self._start + DAY_MS - 1))}
        yield self._events("failed", dead, failed)
        yield self._events("dead_letter", dead, failed)
        yield self._events("expired", dead.where(code == "expired"), failed)
        yield self._events("replayed", dead.where(self._n % 4 == 1), self._delivery | letter | {"status": F.lit("new")})
        gone = self._delivery | letter | {"status": F.lit("purged")}
        yield self._events("dead_letter", dead.where(self._n % 8 == 3), gone)
        code = _pick(("cycle", "max_hops", "call_budget"), self._n)
        yield self._events(
            "dead_letter",
            loops,
            self._message
            | {
                "time": self._sent,
                "target": self._delivery["target"],
                "targetKind": F.lit("none"),
                "status": F.lit("failed"),
                "code": code,
            },
        )

    def _refused(self) -> Iterator[DataFrame]:
        """Refuse every 16th message at another target, and as many publishes completely."""
        twice = self._message | {"time": self._sent, "status": F.lit("refused")}
        code = _pick(("backpressure", "backpressure", "circuit_open", "circuit_open", "budget_exceeded"), self._n)
        other = {
            "target": _target(_name("worker", self._zipf("subject", self._n + 1, SUBJECTS))),
            "targetKind": F.lit("endpoint"),
            "code": code,
        }
        yield self._events("refused", self._messages.where(self._n % 16 == 2), twice | other)
        unsent = self._id("unsent", self._sent, self._n)
        code = _pick(("rate_limited", "rate_limited", "rate_limited", "access_denied", "not_bound"), self._n)
        whole = {"target": F.lit("*"), "targetKind": F.lit("none"), "code": code}
        alone = {"messageId": unsent, "traceId": unsent, "parentId": F.lit(None), "hopCount": F.lit(0)}
        yield self._events("refused", self._messages.where(self._n % 16 == 9), twice | whole | alone)

    def _operations(self) -> Iterator[DataFrame]:
        """Open and close breakers, fill and empty mailboxes, disconnect adapters, run jobs, and restart the bus."""
        episode, step = F.floor(self._n / 3), self._n % 3
        begin = F.lit(self._start) + F.floor(episode * (DAY_MS / max(1, self._episodes)))
        moment = begin + step * (1000 + self._hash("episode", episode) % 60_000)
        subject = _name("worker", self._zipf("subject", episode, SUBJECTS))
        place = {"time": moment, "subject": subject, "target": _target(subject)}
        three = self._range(self._episodes * 3)
        states = _pick(("OPEN", "HALF_OPEN", "CLOSED"), step)
        yield self._events("breaker", three, place | {"status": states, "detail": F.lit("5 failures")})
        depth = F.when(step == 0, LIMIT * 4 // 5).otherwise(LIMIT)
        states = _pick(("warning", "critical", "normal"), step)
        yield self._events("pressure", three, place | {"status": states, "depth": depth, "limit": F.lit(LIMIT)})
        states = _pick(("disconnected", "starting", "connected"), step)
        adapter = {"adapter": _pick(ADAPTERS, episode), "targetKind": F.lit("adapter"), "status": states}
        yield self._events("adapter", three.where(episode % 10 == 0), place | adapter)
        ended = _pick(("ok", "ok", "ok", "failed", "ok", "timed_out"), episode)
        job = {
            "time": moment,
            "code": _pick(("report", "compact-index", "purge-dead-letters", "expire-events"), episode),
            "status": F.when(step == 0, "started").otherwise(ended),
            "handleUs": F.when(step == 1, self._skewed("job", episode, 1_000_000, 1.0)),
        }
        yield self._events("job", three.where(step < 2), job)
        yield self._events(
            "bus", self._range(2), {"time": begin + self._n, "status": _pick(("stopped", "started"), step)}
        )

    def _steps(self) -> dict[str, Column]:
        """Return how long the steps of a delivery took, and its end."""
        queue = self._skewed("queue", self._n, 2_000, 1.2)
        handle = self._skewed("handle", self._n, 20_000, 1.0)
        total = queue + handle + 300
        ended = self._sent + F.floor(total / 1000)
        return {"time": ended, "queueUs": queue, "handleUs": handle, "totalUs": total}

    def _events(self, kind: str, rows: DataFrame, columns: dict[str, Column]) -> DataFrame:
        columns = columns | {"v": F.lit(EVENT_SCHEMA_VERSION), "kind": F.lit(kind)}
        fields = EVENT_SCHEMA.fields
        return rows.select(
            *(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in fields)
        )

    def _range(self, count: int) -> DataFrame:
        return self._spark.range(0, count, 1, max(2, count // _ROWS_OF_A_FILE))

    def _id(self, salt: str, time: Column, n: Column) -> Column:
        """Return an id of 26 characters that sorts by time, as a ULID does."""
        return F.concat(
            F.lpad(F.conv(time.cast("string"), 10, 32), 10, "0"),
            F.lpad(F.hex(F.xxhash64(F.lit(f"{self._seed}{salt}"), n)), 16, "0"),
        )

    def _hash(self, salt: str, n: Column) -> Column:
        """Return a non-negative number that depends only on the seed, the salt and n."""
        return F.xxhash64(F.lit(f"{self._seed}{salt}"), n).bitwiseAND(F.lit(0x7FFF_FFFF_FFFF))

    def _uniform(self, salt: str, n: Column) -> Column:
        return self._hash(salt, n) / float(0x8000_0000_0000)

    def _zipf(self, salt: str, n: Column, count: int) -> Column:
        """Return a number below `count`; the k-th is about 1/k as frequent as the first."""
        return F.floor(F.exp(self._uniform(salt, n) * math.log(count + 1))).cast("int") - 1

    def _skewed(self, salt: str, n: Column, middle: int, spread: float) -> Column:
        """Return a number around `middle` with a long tail, roughly log-normal."""
        near = self._uniform(salt, n) + self._uniform(f"{salt} b", n) + self._uniform(f"{salt} c", n) - 1.5
        return F.floor(F.exp(near * (2 * spread)) * middle)


def _at(block: list[dict[str, int]], n: Column) -> Column:
    """Return the position of message n in its block."""
    # As SQL text: each literal made in Python is a call to the JVM.
    places = (", ".join(f"{value} AS {name}" for name, value in place.items()) for place in block)
    return F.element_at(F.expr(f"array({', '.join(f'struct({place})' for place in places)})"), _place(n, len(block)))


def _pick(values: tuple[str, ...], n: Column) -> Column:
    return F.element_at(F.expr(f"array{values!r}"), _place(n, len(values)))


def _place(n: Column, count: int) -> Column:
    return (n % count).cast("int") + 1


def _name(what: str, number: Column) -> Column:
    return F.concat(F.lit(f"relay.agent.{what}-"), F.lpad(number.cast("string"), 3, "0"))


def _target(subject: Column) -> Column:
    return F.substring(F.lower(F.lpad(F.hex(F.xxhash64(subject)), 16, "0")), 1, 12)


def lines(count: int, day: date, seed: int = 1) -> Iterator[str]:
    """Yield JSON lines (without their ends) of a day's everyday traffic, as the daemon writes them."""
    return islice(_lines(count, Day.of(day, 0).start_ms, Random(seed)), count)


def _lines(count: int, start: int, random: Random) -> Iterator[str]:
    for number in range(count):
        time = start + int(number * (DAY_MS - 60_000) * 2.9 / count)
        message_id = f"{number:010d}{random.getrandbits(64):016X}"
        subject = f"relay.agent.worker-{int(math.exp(random.random() * math.log(SUBJECTS))):03d}"
        fields: _Fields = {
            "message_id": message_id,
            "trace_id": message_id,
            "subject": subject,
            "sender": f"relay.agent.sender-{int(math.exp(random.random() * math.log(SENDERS))):02d}",
            "hop_count": 0,
            "calls_left": CALL_BUDGET,
            "bytes": int(random.lognormvariate(6.4, 1)),
        }
        if number % 30 == 7:
            refused: _Fields = {"target": "*", "target_kind": "none", "status": "refused", "code": "rate_limited"}
            yield _line(time, EventKind.REFUSED, fields | refused)
            continue
        accepted: _Fields = {"status": "accepted"}
        yield _line(time, EventKind.PUBLISH, fields | accepted)
        copy: _Fields = {"target": subject_hash(subject), "target_kind": "endpoint", "hop_count": 1, "calls_left": 9}
        stored: _Fields = {"status": "new", "store_us": 250, "total_us": 250}
        yield _line(time, EventKind.STORED, fields | copy | stored)
        queue, handle = int(random.lognormvariate(7.6, 1)), int(random.lognormvariate(9.9, 1))
        ended = time + (queue + handle) // 1000
        copy |= {"queue_us": queue, "handle_us": handle, "total_us": queue + handle + 300, "status": "done"}
        if number % _DEAD_EVERY == 5:
            copy |= {"status": "failed", "code": "handler_failed", "detail": 'ValueError: "ü" — no\nsecond line'}
            yield _line(ended, EventKind.FAILED, fields | copy)
            yield _line(ended, EventKind.DEAD_LETTER, fields | copy)
        else:
            yield _line(ended, EventKind.HANDLED, fields | copy)


def _line(time: int, kind: EventKind, fields: _Fields) -> str:
    data, _ = format_events([make_event(kind, time, fields)])
    return data.decode().removesuffix("\n")


def main(tables_dir: str, day: str, rows: str) -> None:
    """Write a day of events."""
    with open_session("relay-events") as spark:
        write_day(generate(spark, int(rows), date.fromisoformat(day)), tables_dir, date.fromisoformat(day))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Searches over the index: a page of dead letters with its total, and a page of traces, as the dashboard asks for them.

The index is filled without files: a tenth of its deliveries are dead letters, the rest were handled. Each round asks
every question once; the value is the slowest question's time, in ms, over the rounds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter

from benchmarks.harness import Bench, Cases, Goal, Result
from relay_core.clock import SystemClock
from relay_core.messages.dead_letter import DeadLetterFilter
from relay_core.messages.delivery import Delivery, TraceSearch
from relay_core.messages.ids import UlidFactory
from relay_core.messages.subjects import subject_hash
from relay_core.records.queries import count_dead_letters, dead_letter_page
from relay_core.records.rows import write_deliveries
from relay_core.records.schema import connect, migrate, transaction
from relay_core.records.selection import Selection
from relay_core.records.trace_search import search_traces

FILTERS = (
    "",
    "code=timeout",
    'reason~"part 7 "',
    '!reason~"part 7 "',
    "to=relay.bench.*",
    "!to~worker-1",
    "from=relay.bench.sender-7",
    "subject~worker-11 !from~sender-1",
    "age>1d replays>0",
)
SEARCHES = (
    TraceSearch(),
    TraceSearch(status="failed"),
    TraceSearch(status="refused"),
    TraceSearch(subject="worker-19"),
    TraceSearch(sender="relay.*.unknown"),
)
_DEAD_EACH = 10
_SPACING_MS = 1000
_CHUNK = 10_000

Question = Callable[[sqlite3.Connection], object]


def dead_letters(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Ask for the first page of every filter, with its total."""
    questions = [partial(_first_page, where=where) for where in FILTERS]
    yield from _slowest(bench, Goal(name, "slowest", "ms", "most", most), questions)


def traces(bench: Bench, name: str, *, most: float) -> Iterable[Result]:
    """Ask for the first page of every search."""
    questions = [partial(search_traces, search=search) for search in SEARCHES]
    yield from _slowest(bench, Goal(name, "slowest", "ms", "most", most), questions)


def _slowest(bench: Bench, goal: Goal, questions: Sequence[Question]) -> Iterator[Result]:
    path = bench.fresh() / "index.db"
    with closing(connect(str(path))) as db:
        migrate(db)
        _fill(db, bench.stored * _DEAD_EACH)
        rounds = []
        for _ in range(bench.rounds):
            times = []
            for question in questions:
                start = perf_counter()
                question(db)
                times.append((perf_counter() - start) * 1000)
            rounds.append(max(times))
    yield goal.result(rounds, deliveries=bench.stored * _DEAD_EACH, dead=bench.stored)


def _first_page(db: sqlite3.Connection, *, where: str) -> None:
    selection = Selection.of(DeadLetterFilter(where=where), SystemClock().now_ms())
    dead_letter_page(db, selection, after=None, limit=100)
    count_dead_letters(db, selection)


def _fill(db: sqlite3.Connection, deliveries: int) -> None:
    new_id = UlidFactory(SystemClock())
    first = SystemClock().now_ms() - deliveries * _SPACING_MS
    for start in range(0, deliveries, _CHUNK):
        numbers = range(start, min(start + _CHUNK, deliveries))
        with transaction(db):
            write_deliveries(db, [_delivery(new_id, n, first + n * _SPACING_MS) for n in numbers])


def _delivery(new_id: UlidFactory, number: int, at: int) -> Delivery:
    subject = f"relay.bench.worker-{number % 200}"
    is_dead = number % _DEAD_EACH == 0
    message_id = new_id(at)
    return Delivery(
        message_id=message_id,
        target=subject_hash(subject),
        kind="endpoint",
        target_subject=subject,
        subject=subject,
        sender=f"relay.bench.sender-{number % 499}",
        trace_id=message_id,
        parent_id=None,
        status="failed" if is_dead else "done",
        sent_ms=at,
        expires_ms=at + 3_600_000,
        hops_before=0,
        calls_before=10,
        hops_after=1,
        calls_after=9,
        max_hops=5,
        ancestors=(subject,),
        size=1024,
        code=("timeout", "handler_failed", "expired")[number % 3] if is_dead else None,
        reason=f"handle: ValueError: something is broken in part {number % 77} of the machine" if is_dead else None,
        stored_ms=at + 0.5,
        claimed_ms=at + 1.0,
        handled_ms=at + 2.5,
        replays=number % 7 // 5,
    )


SEARCH_CASES: Cases = {
    "search_dead_letters": partial(dead_letters, most=100),
    "search_traces": partial(traces, most=100),
}

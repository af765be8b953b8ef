"""BatchThread: everything put is flushed once, in order, in few batches, whatever flush does."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from types import FrameType
from typing import Any

import pytest

from relay_core.errors import Closed
from relay_core.records.batch_thread import BatchThread
from tests.kit.waiting import PATIENCE_SECS

NEVER = 3600.0
"""A linger that ends only by being cut short."""

Start = Callable[..., BatchThread[int]]
TraceFunction = Callable[[FrameType, str, Any], Any]


@pytest.fixture
def start() -> Iterator[Start]:
    threads: list[BatchThread[int]] = []

    def build(flush: Callable[[list[int]], None], **options: object) -> BatchThread[int]:
        thread: BatchThread[int] = BatchThread("test", flush, **options)  # type: ignore[arg-type]
        thread.start()
        threads.append(thread)
        return thread

    yield build
    for thread in threads:
        thread.close()


def test_a_batch_builds_up_until_a_barrier_asks_for_it(start: Start) -> None:
    batches: list[list[int]] = []
    thread = start(batches.append, linger=NEVER)
    for item in range(100_000):  # long enough for an eager thread to show itself
        thread.put(item)
    assert batches == []
    thread.barrier().result(PATIENCE_SECS)
    assert batches == [list(range(100_000))]
    assert thread.waiting == 0


def test_items_are_flushed_after_the_linger_without_being_asked_for(start: Start) -> None:
    flushed = threading.Event()
    thread = start(lambda batch: flushed.set(), linger=0.001)
    thread.put(1)
    assert flushed.wait(PATIENCE_SECS)


def test_a_barrier_with_nothing_before_it_resolves_and_flushes_nothing(start: Start) -> None:
    batches: list[list[int]] = []
    thread = start(batches.append, linger=NEVER)
    thread.barrier().result(PATIENCE_SECS)
    thread.barrier().result(PATIENCE_SECS)
    assert batches == []


def test_many_threads_lose_nothing_and_keep_their_own_order(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend, linger=0)
    each = 20_000

    def produce(number: int) -> None:
        for item in range(each):
            thread.put(number * each + item)
        thread.barrier().result(PATIENCE_SECS)

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join(PATIENCE_SECS)
    assert sorted(flushed) == list(range(4 * each))
    for number in range(4):
        mine = [item for item in flushed if item // each == number]
        assert mine == sorted(mine)


def test_a_barrier_covers_what_its_own_thread_put_before_it(start: Start) -> None:
    flushed: set[int] = set()
    thread = start(flushed.update, linger=0)
    for item in range(500):
        thread.put(item)
        thread.barrier().result(PATIENCE_SECS)
        assert item in flushed


def test_a_put_suspended_at_any_line_loses_nothing(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend, linger=0)

    def suspend(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if frame.f_code is not BatchThread.put.__code__:
            return None
        if event == "line":
            thread.barrier().result(PATIENCE_SECS)  # a whole round of the other thread
        return suspend

    def produce() -> None:
        sys.settrace(suspend)
        for item in range(10):
            thread.put(item)
        sys.settrace(None)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(PATIENCE_SECS)
    thread.barrier().result(PATIENCE_SECS)
    assert flushed == list(range(10))


@pytest.mark.parametrize("with_barrier", [False, True], ids=["put", "put-and-barrier"])
@pytest.mark.parametrize("step", range(8))
def test_a_put_between_any_two_lines_of_a_round_is_flushed_unasked(step: int, with_barrier: bool) -> None:
    """Without a barrier only the put's own wake-up brings it out; a barrier must not resolve before it."""
    flushed: list[int] = []
    seen_by_barrier: list[list[int]] = []
    both_flushed = threading.Event()
    lines = 0

    def flush(batch: list[int]) -> None:
        flushed.extend(batch)
        if len(flushed) == 2:
            both_flushed.set()

    thread: BatchThread[int] = BatchThread("test", flush, linger=0)

    def interfere(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal lines
        if frame.f_code is not BatchThread._round.__code__:
            return None
        if event == "line" and not thread._lock.locked():
            if lines == step:
                thread.put(2)
                if with_barrier:
                    thread.barrier().add_done_callback(lambda _: seen_by_barrier.append(list(flushed)))
            lines += 1
        return interfere

    threading.settrace(interfere)
    thread.start()
    threading.settrace(None)
    try:
        thread.put(1)
        assert both_flushed.wait(PATIENCE_SECS)
    finally:
        thread.close()
    assert flushed == [1, 2]
    assert seen_by_barrier == [[1, 2]] * with_barrier


def test_a_flush_in_a_long_c_call_holds_up_no_put(start: Start) -> None:
    reader, writer = os.pipe()
    entered = threading.Event()
    batches: list[list[int]] = []

    def flush(batch: list[int]) -> None:
        batches.append(batch)
        if len(batches) == 1:
            entered.set()
            os.read(reader, 1)  # without the GIL until the test writes

    thread = start(flush, linger=NEVER)
    thread.put(1)
    first = thread.barrier()
    assert entered.wait(PATIENCE_SECS)
    thread.put(2)
    thread.put(3)
    second = thread.barrier()
    assert not first.done()
    assert not second.done()
    os.write(writer, b"!")
    second.result(PATIENCE_SECS)
    assert batches == [[1], [2, 3]]
    os.close(reader)
    os.close(writer)


def test_beyond_the_limit_put_drops_and_counts(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend, linger=NEVER, limit=10)
    for item in range(25):
        thread.put(item)
    assert (thread.waiting, thread.dropped) == (10, 15)
    thread.barrier().result(PATIENCE_SECS)
    thread.put(99)
    thread.barrier().result(PATIENCE_SECS)
    assert flushed == [*range(10), 99]


def test_a_failing_flush_is_counted_reported_and_logged_once_and_the_thread_lives_on(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    flushed: list[int] = []
    reported: list[tuple[str, list[int]]] = []
    broken = True

    def flush(batch: list[int]) -> None:
        if broken:
            raise OSError("disk gone")
        flushed.extend(batch)

    def report(error: Exception, batch: list[int]) -> None:
        reported.append((str(error), batch))
        raise RuntimeError("the report fails as well")

    thread = start(flush, linger=NEVER, on_error=report)
    with caplog.at_level(logging.WARNING, logger="relay_core.records.batch_thread"):
        for item in (1, 2):
            thread.put(item)
            thread.barrier().result(PATIENCE_SECS)
        broken = False
        thread.put(3)
        thread.barrier().result(PATIENCE_SECS)
    assert flushed == [3]
    assert thread.failures == 2
    assert reported == [("disk gone", [1]), ("disk gone", [2])]
    logged = [record.getMessage() for record in caplog.records]
    assert sum("cannot flush a batch" in message for message in logged) == 1
    assert sum("flushed again" in message for message in logged) == 1


def test_submit_runs_on_the_thread_after_what_was_put_before(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend, linger=NEVER)
    thread.put(1)
    name, seen = thread.submit(lambda: (threading.current_thread().name, list(flushed))).result(PATIENCE_SECS)
    assert (name, seen) == ("test", [1])


def test_an_error_in_a_submitted_call_is_its_callers(start: Start) -> None:
    thread = start(lambda batch: None)
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 // 0).result(PATIENCE_SECS)
    thread.barrier().result(PATIENCE_SECS)


def test_a_cancelled_barrier_harms_nobody(start: Start) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def flush(batch: list[int]) -> None:
        entered.set()
        go_on.wait(PATIENCE_SECS)

    thread = start(flush, linger=0)
    thread.put(1)
    assert entered.wait(PATIENCE_SECS)
    cancelled: Future[None] = thread.barrier()
    kept = thread.barrier()
    assert cancelled.cancel()
    go_on.set()
    kept.result(PATIENCE_SECS)
    with pytest.raises(CancelledError):
        cancelled.result(PATIENCE_SECS)


def test_close_flushes_what_waits_and_joins(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend, linger=NEVER)
    thread.put(1)
    waiting = thread.barrier()
    thread.put(2)
    thread.close()
    assert flushed == [1, 2]
    assert waiting.done()
    assert "test" not in {each.name for each in threading.enumerate()}


def test_after_close_a_put_is_dropped_and_a_barrier_refused(start: Start) -> None:
    flushed: list[int] = []
    thread = start(flushed.extend)
    thread.close()
    thread.close()
    thread.put(1)
    assert (flushed, thread.dropped) == ([], 1)
    with pytest.raises(Closed):
        thread.barrier()


def test_closing_a_thread_that_was_never_started_still_flushes() -> None:
    flushed: list[int] = []
    thread: BatchThread[int] = BatchThread("test", flushed.extend)
    thread.put(1)
    thread.close()
    assert flushed == [1]

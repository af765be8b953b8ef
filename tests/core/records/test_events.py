"""The event log: one schema, whole segments, and a writer that never fails or slows anybody."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import EventsConfig
from relay_core.records.event_log import EventLog
from relay_core.records.events import (
    EVENT_SCHEMA_VERSION,
    Event,
    EventKind,
    WireEvent,
    format_events,
    make_event,
)
from relay_core.testing import FakeClock
from tests.kit.events import EventReader
from tests.kit.waiting import PATIENCE_SECS

NOON = int(datetime(2025, 3, 14, 12, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000

FULL: dict[str, str | int | None] = {
    "message_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "trace_id": "01ARZ3NDEKTSV4RRFFQ69G5FAW",
    "parent_id": "01ARZ3NDEKTSV4RRFFQ69G5FAX",
    "subject": "relay.agent.a",
    "sender": "relay.agent.b",
    "target": "relay.agent.c",
    "target_kind": "mailbox",
    "status": "delivered",
    "code": "ok",
    "store_us": 1,
    "queue_us": 2,
    "handle_us": 3,
    "total_us": 4,
    "hop_count": 5,
    "calls_left": 6,
    "bytes": 7,
    "adapter": "telegram",
    "detail": "all went well",
    "depth": 8,
    "limit": 9,
}
FULL_EVENT = make_event(EventKind.HANDLED, NOON, FULL)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_ms=NOON)


@pytest.fixture
def directory(data_dir: Path) -> Path:
    return data_dir / "events"


@pytest.fixture
def log(directory: Path, clock: FakeClock) -> Iterator[EventLog]:
    log = EventLog(directory, EventsConfig(), clock)
    log.start()
    yield log
    log.close()


def segments(directory: Path, pattern: str = "*") -> list[Path]:
    return sorted(directory.glob(f"date=*/{pattern}"))


def sealed_events(directory: Path) -> list[Event]:
    return [event for path in segments(directory, "[0-9]*.jsonl") for event in EventReader(path)]


def event_at(time: int, number: int = 0, detail: str | None = None) -> WireEvent:
    return make_event(EventKind.STORED, time, {"bytes": number, "detail": detail})


# The schema


def test_an_event_has_every_field_of_the_schema() -> None:
    data, count = format_events([FULL_EVENT])
    event = Event.model_validate_json(data)
    assert count == 1
    assert event.model_dump() == {"v": EVENT_SCHEMA_VERSION, "time": NOON, "kind": EventKind.HANDLED, **FULL}
    assert json.loads(data).keys() == {field.alias for field in Event.model_fields.values()}


def test_empty_fields_are_left_out_of_the_line() -> None:
    data, _ = format_events([event_at(NOON, 7)])
    assert json.loads(data) == {"v": EVENT_SCHEMA_VERSION, "time": NOON, "kind": "stored", "bytes": 7}


@given(st.lists(st.one_of(st.none(), st.text(), st.just('a},{"b'), st.just('"},{"v":1'), st.just("\ud800\n\0"))))
def test_any_detail_makes_exactly_one_line(details: list[str | None]) -> None:
    data, count = format_events([event_at(NOON, number, detail) for number, detail in enumerate(details)])
    lines = data.splitlines() if details else []
    events = [Event.model_validate_json(line) for line in lines]
    assert count == len(details)
    assert [event.bytes for event in events] == list(range(len(details)))
    for event, detail in zip(events, details, strict=True):
        cleaned = None if detail is None else detail[:500].encode(errors="replace").decode()
        assert event.detail == cleaned


def test_a_long_detail_is_cut() -> None:
    data, _ = format_events([event_at(NOON, 0, "x" * 501)])
    assert Event.model_validate_json(data).detail == "x" * 500


def test_a_row_that_is_no_json_costs_no_other_event_at() -> None:
    data, count = format_events([event_at(NOON, number) for number in (1, 1 << 70, 3)])
    assert count == 2
    assert [Event.model_validate_json(line).bytes for line in data.splitlines()] == [1, 3]


# Writing


def test_emit_takes_names_and_dates_the_event_now(log: EventLog, directory: Path) -> None:
    log.emit(EventKind.BREAKER, target="relay.agent.a", status="open", detail="5 failures")
    log.emit(EventKind.JOB, time=NOON + 5)
    log.seal().result(PATIENCE_SECS)
    assert sealed_events(directory) == [
        Event(time=NOON, kind=EventKind.BREAKER, target="relay.agent.a", status="open", detail="5 failures"),
        Event(time=NOON + 5, kind=EventKind.JOB),
    ]


def test_emit_refuses_a_field_that_the_schema_lacks(log: EventLog) -> None:
    with pytest.raises(TypeError, match="payload"):
        log.emit(EventKind.JOB, payload="secret")


def test_everything_emitted_from_any_thread_is_written_once(log: EventLog, directory: Path) -> None:
    def emit(start: int) -> None:
        for number in range(start, start + 5000):
            log.put(event_at(NOON, number))

    threads = [threading.Thread(target=emit, args=(start,)) for start in (0, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECS)
    log.seal().result(PATIENCE_SECS)
    assert sorted(event.bytes or 0 for event in sealed_events(directory)) == list(range(10_000))
    assert log.written == 10_000
    assert log.bytes_written == sum(path.stat().st_size for path in segments(directory))


def test_files_and_directories_are_private(log: EventLog, directory: Path) -> None:
    before = os.umask(0)
    try:
        log.put(FULL_EVENT)
        log.barrier().result(PATIENCE_SECS)
    finally:
        os.umask(before)
    (segment,) = segments(directory)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory, segment.parent, segment)]
    assert modes == [0o700, 0o700, 0o600]


def test_a_segment_is_hidden_from_spark_until_it_is_complete(log: EventLog, directory: Path) -> None:
    log.put(FULL_EVENT)
    log.barrier().result(PATIENCE_SECS)
    assert [path.name for path in segments(directory)] == [f"_12-{NOON}-{os.getpid()}.jsonl"]
    log.seal().result(PATIENCE_SECS)
    assert [path.name for path in segments(directory)] == [f"12-{NOON}-{os.getpid()}.jsonl"]


def test_a_segment_holds_one_utc_hour_by_the_events_own_time(log: EventLog, directory: Path) -> None:
    midnight = NOON + 12 * HOUR
    for number, time in enumerate((midnight - HOUR, midnight - 1, midnight, midnight + HOUR - 1, midnight + HOUR)):
        log.put(event_at(time, number))
    log.seal().result(PATIENCE_SECS)
    found = {
        f"{path.parent.name} {path.name[:2]}": [event.bytes for event in EventReader(path)]
        for path in segments(directory)
    }
    assert found == {"date=2025-03-14 23": [0, 1], "date=2025-03-15 00": [2, 3], "date=2025-03-15 01": [4]}


def test_a_passed_hour_is_sealed_by_the_first_event_of_the_next(log: EventLog, directory: Path) -> None:
    for time in (NOON, NOON + HOUR):
        log.put(event_at(time))
        log.barrier().result(PATIENCE_SECS)
    assert [path.name[:3] for path in segments(directory)] == ["12-", "_13"]


def test_a_late_event_gets_a_segment_of_its_own_hour(log: EventLog, directory: Path) -> None:
    for time in (NOON, NOON + HOUR, NOON + 1):
        log.put(event_at(time))
        log.barrier().result(PATIENCE_SECS)
    log.seal().result(PATIENCE_SECS)
    assert [path.name[:2] for path in segments(directory)] == ["12", "12", "13"]
    assert sorted(event.time for event in sealed_events(directory)) == [NOON, NOON + 1, NOON + HOUR]


def test_late_events_among_newer_ones_do_not_close_the_newest_hour(log: EventLog, directory: Path) -> None:
    for _ in range(3):
        for time in (NOON + HOUR, NOON, NOON + HOUR):
            log.put(event_at(time))
        log.barrier().result(PATIENCE_SECS)
        assert len(segments(directory, "_13*")) == 1
    log.seal().result(PATIENCE_SECS)
    assert len(segments(directory, "13*")) <= 3
    assert len(sealed_events(directory)) == 9


def test_a_clock_that_went_back_does_not_make_a_segment_for_every_batch(log: EventLog, directory: Path) -> None:
    for time in (NOON + HOUR, NOON, NOON + 1, NOON + 2, NOON + 3):
        log.put(event_at(time))
        log.barrier().result(PATIENCE_SECS)
    log.seal().result(PATIENCE_SECS)
    assert len(segments(directory)) == 2


def test_a_segment_that_is_large_enough_is_sealed(directory: Path, clock: FakeClock) -> None:
    log = EventLog(directory, EventsConfig(max_segment_bytes=4096), clock)
    log.start()
    for number in range(100):
        log.put(event_at(NOON, number, "x" * 90))
        log.barrier().result(PATIENCE_SECS)
    log.close()
    sizes = [path.stat().st_size for path in segments(directory, "[0-9]*.jsonl")]
    assert len(sizes) > 2
    assert all(size < 4096 + 200 for size in sizes)
    assert sorted(event.bytes or 0 for event in sealed_events(directory)) == list(range(100))


def test_a_sealed_segment_is_never_written_again_nor_replaced(log: EventLog, directory: Path) -> None:
    for number in range(5):  # the clock stands still, so the names would be the same
        log.put(event_at(NOON, number))
        log.seal().result(PATIENCE_SECS)
    assert [[event.bytes for event in EventReader(path)] for path in segments(directory)] == [[n] for n in range(5)]


def test_close_seals_and_what_comes_later_is_dropped_and_counted(log: EventLog, directory: Path) -> None:
    log.put(FULL_EVENT)
    log.close()
    log.put(FULL_EVENT)
    assert len(sealed_events(directory)) == 1
    assert log.dropped == 1


def test_events_can_be_switched_off_and_on(log: EventLog, directory: Path) -> None:
    log.update_config(EventsConfig(enabled=False))
    log.put(event_at(NOON, 1))
    log.barrier().result(PATIENCE_SECS)
    log.update_config(EventsConfig())
    log.put(event_at(NOON, 2))
    log.seal().result(PATIENCE_SECS)
    assert [event.bytes for event in sealed_events(directory)] == [2]


async def test_it_is_an_async_context_manager(directory: Path, clock: FakeClock) -> None:
    async with EventLog(directory, EventsConfig(), clock) as log:
        log.put(FULL_EVENT)
    assert len(sealed_events(directory)) == 1


# Kills and failures

KILLED = """
import sys
from pathlib import Path
from relay_core.clock import SystemClock
from relay_core.config import EventsConfig
from relay_core.records.event_log import EventLog
from relay_core.records.events import EventKind

log = EventLog(Path(sys.argv[1]), EventsConfig(), SystemClock())
log.start()
number = 0
while True:
    for _ in range(2000):
        log.emit(EventKind.PUBLISH, bytes=number, detail="x" * 400)
        number += 1
    log.barrier().result(30)
    print(number, flush=True)
"""


def test_what_a_killed_process_left_is_sealed_and_never_appended_to(directory: Path, clock: FakeClock) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(directory)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        written = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    (left,) = segments(directory)
    assert left.name.startswith("_")
    with left.open("ab") as torn:
        torn.write(b'{"v":1,"time":17')
    size = left.stat().st_size
    log = EventLog(directory, EventsConfig(), clock)
    log.start()
    log.put(FULL_EVENT)
    log.close()
    sealed = left.with_name(left.name.removeprefix("_"))
    assert sealed.stat().st_size == size
    reading = EventReader(sealed)
    numbers = [event.bytes for event in reading]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= written
    assert reading.bad_lines >= 1
    assert len(segments(directory, "[0-9]*.jsonl")) == 2


def test_a_removed_directory_is_made_anew(log: EventLog, directory: Path) -> None:
    log.put(event_at(NOON, 1))
    log.barrier().result(PATIENCE_SECS)
    shutil.rmtree(directory)
    log.put(event_at(NOON, 2))
    log.seal().result(PATIENCE_SECS)
    assert [event.bytes for event in sealed_events(directory)] == [2]


def test_a_failing_disk_is_counted_logged_once_and_heals(
    log: EventLog, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.write_bytes(b"a file where the directory should be")
    with caplog.at_level(logging.WARNING, logger="relay_core.records.event_log"):
        for number in range(3):
            log.put(event_at(NOON, number))
            log.barrier().result(PATIENCE_SECS)
        assert log.failed_writes == 3
        assert log.dropped == 3
        directory.unlink()
        log.put(event_at(NOON, 3))
        log.seal().result(PATIENCE_SECS)
    assert [event.bytes for event in sealed_events(directory)] == [3]
    messages = [record.getMessage() for record in caplog.records]
    assert sum("cannot write events" in message for message in messages) == 1
    assert sum("written to" in message and "again" in message for message in messages) == 1


FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
from relay_core.config import EventsConfig
from relay_core.records.event_log import EventLog
from relay_core.records.events import EventKind
from tests.kit.events import EventReader
from relay_core.testing import FakeClock

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], check=True)
log = EventLog(disk / "events", EventsConfig(), FakeClock())
log.start()

def emit(numbers):
    for number in numbers:
        log.emit(EventKind.PUBLISH, bytes=number, detail="x" * 100)
    log.barrier().result(30)

emit(range(10))
(disk / "filler").write_bytes(b"x" * 20_000)
emit(range(10, 1000))           # comes up short
emit(range(1000, 2000))
print(log.written, log.dropped, log.failed_writes)
os.unlink(disk / "filler")
emit(range(2000, 2010))
log.close()
(path,) = disk.glob("events/date=*/*")
reading = EventReader(path)
print([event.bytes for event in reading], reading.bad_lines, path.name.startswith("_"))
"""


def test_a_full_disk_tears_no_line_in_the_middle_and_heals(tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine allows no private mounts")
    child = subprocess.run(
        [*unshare, sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECS,
    )
    assert child.returncode == 0, child.stderr
    stats, result = child.stdout.splitlines()
    assert stats == "10 1990 2"
    assert result == f"{[*range(10), *range(2000, 2010)]} 0 False"


def test_a_writer_that_cannot_keep_up_drops_and_counts(
    directory: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_core.records.event_log.MAX_WAITING", 100)
    log = EventLog(directory, EventsConfig(), clock)
    for number in range(150):  # not started yet: nobody takes them
        log.put(event_at(NOON, number))
    assert log.dropped == 50
    log.start()
    log.close()
    assert [event.bytes for event in sealed_events(directory)] == list(range(100))


def test_a_large_batch_over_two_hours_keeps_the_order_of_each(log: EventLog, directory: Path) -> None:
    for number in range(700):
        log.put(event_at(NOON + HOUR * (number // 3 % 2), number if number != 400 else 1 << 70))
    log.close()
    found = [[event.bytes or 0 for event in EventReader(path)] for path in segments(directory, "1*.jsonl")]
    whole = [number for number in range(700) if number != 400]
    assert found == [[number for number in whole if number // 3 % 2 == hour] for hour in (0, 1)]
    assert (log.written, log.dropped) == (699, 1)


# Reading and retention


def test_bad_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl"
    good, _ = format_events([FULL_EVENT])
    path.write_bytes(
        good + b"{}\n" + b"\xff\xfe\n" + b"[1]\n" + good + b'{"v":1,"time":1,"kind":"mystery"}\n' + good[:40]
    )
    reading = EventReader(path)
    assert len(list(reading)) == 2
    assert reading.bad_lines == 5


def test_a_segment_cut_at_any_byte_gives_every_whole_line(tmp_path: Path) -> None:
    data, _ = format_events([event_at(NOON, number, "añb") for number in range(4)])
    path = tmp_path / "segment.jsonl"
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        reading = EventReader(path)
        numbers = [event.bytes for event in reading]
        assert numbers == list(range(len(numbers)))
        # A line is whole with its last brace; the newline may be missing.
        assert len(numbers) == data[:length].count(b"}")
        assert reading.bad_lines <= 1


def test_lines_of_another_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl"
    path.write_bytes(b'{"v":99,"time":1,"kind":"job","colour":"red"}\n')
    (event,) = EventReader(path)
    assert (event.v, event.kind) == (99, EventKind.JOB)


def test_old_dates_expire_and_nothing_else(log: EventLog, directory: Path, clock: FakeClock) -> None:
    directory.mkdir()
    for name in ("date=2025-03-01", "date=2025-03-12", "date=2025-03-13", "date=2025-03-14", "date=today", "other"):
        (directory / name).mkdir()
        (directory / name / "12-1-1.jsonl").write_bytes(b"x")
    outside = directory.parent / "outside"
    outside.mkdir()
    (directory / "date=2020-01-01").symlink_to(outside)
    assert log.expire(1, clock.now_ms()) == 2
    assert log.expire(1, clock.now_ms()) == 0
    assert sorted(os.listdir(directory)) == [
        "date=2020-01-01",
        "date=2025-03-13",
        "date=2025-03-14",
        "date=today",
        "other",
    ]
    assert outside.exists()


def test_expiring_without_a_directory_is_no_error(log: EventLog, clock: FakeClock) -> None:
    assert log.expire(30, clock.now_ms()) == 0

"""What the index is asked: right against a naive reading of its rows, and never by reading all of them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_core.messages.dead_letter import DeadLetterFilter
from relay_core.messages.delivery import Delivery, Status
from relay_core.messages.ids import UlidFactory
from relay_core.pipeline import parents
from relay_core.records import queries as lookups
from relay_core.records import reindex
from relay_core.records.index import Index
from relay_core.records.rows import PublishRow, write_deliveries, write_publishes
from relay_core.records.schema import connect, migrate
from relay_core.records.selection import Selection
from relay_core.testing import FakeClock

T0 = 1_700_000_000_000
TARGETS = [f"{number:012x}" for number in range(5)]
STATUSES = [value for name, value in vars(Status).items() if name.isupper()]
DEAD = (Status.FAILED, Status.NO_SUBSCRIBER, Status.PARTIAL_FAILURE)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = connect(str(tmp_path / "index.db"))
    migrate(db)
    yield db
    db.close()


def delivery(message_id: str, target: str = TARGETS[0], status: str = Status.NEW, **values: Any) -> Delivery:
    made = Delivery(
        message_id=message_id,
        target=target,
        kind="endpoint",
        target_subject=f"relay.agent.{target}",
        subject="relay.agent.a",
        sender="relay.agent.s",
        trace_id=message_id,
        parent_id=None,
        status=status,
        sent_ms=T0,
        expires_ms=T0 + 3_600_000,
        hops_before=0,
        calls_before=10,
        hops_after=1,
        calls_after=9,
        max_hops=5,
        ancestors=("relay.agent.a",),
        size=10,
        stored_ms=T0,
    )
    if status in DEAD:
        made.code, made.reason, made.handled_ms = "timeout", "too slow", T0
    return replace(made, **values)


def publish(message_id: str, created_ms: int = T0, status: str = "accepted", **values: Any) -> PublishRow:
    row = PublishRow(
        message_id, "relay.agent.a", "relay.agent.s", None, created_ms, message_id, None, status, 10, 0, 10
    )
    return row._replace(**values)


@pytest.fixture
def new_id(clock: FakeClock) -> UlidFactory:
    return UlidFactory(clock)


def test_spans_hold_every_column(db: sqlite3.Connection, new_id: UlidFactory) -> None:
    message_id = new_id()
    written = delivery(
        message_id,
        status=Status.PARTIAL,
        trace_id="T",
        parent_id="P",
        code="handler_failed",
        reason="one of two",
        claimed_ms=T0 + 1.25,
        handled_ms=T0 + 2.5,
        replays=3,
        replay_of="R",
        outcomes=[{"handler": "h", "ok": False, "error": "x"}, {"handler": "i", "ok": True, "error": None}],
    )
    write_deliveries(db, [written])
    (span,) = lookups.spans(db, message_id)
    assert span.model_dump() == {
        "message_id": message_id,
        "target": TARGETS[0],
        "target_kind": "endpoint",
        "target_subject": f"relay.agent.{TARGETS[0]}",
        "subject": "relay.agent.a",
        "sender": "relay.agent.s",
        "trace_id": "T",
        "parent_id": "P",
        "status": "partial",
        "code": "handler_failed",
        "reason": "one of two",
        "sent_at": T0,
        "stored_at": T0,
        "claimed_at": T0 + 1.25,
        "handled_at": T0 + 2.5,
        "hops_before": 0,
        "hops_after": 1,
        "calls_before": 10,
        "calls_after": 9,
        "max_hops": 5,
        "ancestors": ("relay.agent.a",),
        "expires_at": T0 + 3_600_000,
        "size": 10,
        "replays": 3,
        "replay_of": "R",
        "outcomes": tuple(written.outcomes or ()),
    }


def test_spans_are_of_one_message_in_order(db: sqlite3.Connection, new_id: UlidFactory) -> None:
    one, other = new_id(), new_id()
    write_deliveries(db, [delivery(one, target) for target in reversed(TARGETS)] + [delivery(other)])
    assert [span.target for span in lookups.spans(db, one)] == TARGETS
    assert lookups.spans(db, new_id()) == []


def test_a_conversation_is_its_first_message_and_all_that_followed(db: sqlite3.Connection, new_id: UlidFactory) -> None:
    first, second, third, other = (new_id() for _ in range(4))
    write_deliveries(
        db,
        [
            delivery(third, trace_id=first, parent_id=second),
            delivery(second, TARGETS[1], trace_id=first, parent_id=first),
            delivery(second, TARGETS[0], trace_id=first, parent_id=first),
            delivery(first),
            delivery(other),
        ],
    )
    found = lookups.conversation(db, first)
    assert [(span.message_id, span.target) for span in found] == [
        (first, TARGETS[0]), (second, TARGETS[0]), (second, TARGETS[1]), (third, TARGETS[0]),
    ]  # fmt: skip
    assert lookups.conversation(db, first, limit=2) == found[:2]
    assert lookups.conversation(db, second) == []  # it is not the first of any


@pytest.mark.parametrize("look", [lookups.expired, lookups.unread])
def test_what_waits_too_long_is_found_longest_first(
    look: Callable[..., list[tuple[str, str]]], db: sqlite3.Connection, new_id: UlidFactory
) -> None:
    ids = [new_id() for _ in range(6)]
    write_deliveries(
        db,
        [
            delivery(message_id, stored_ms=T0 + late, expires_ms=T0 + late)
            for message_id, late in zip(ids, (50, 40, 30, 20, 10, 0), strict=True)
        ]
        + [delivery(new_id(), status=status, stored_ms=0, expires_ms=0) for status in STATUSES if status != "new"],
    )
    assert look(db, T0, 10) == []
    assert look(db, T0 + 31, 10) == [(TARGETS[0], message_id) for message_id in (ids[5], ids[4], ids[3], ids[2])]
    assert look(db, T0 + 31, 2, skip=1) == [(TARGETS[0], ids[4]), (TARGETS[0], ids[3])]


rows = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(TARGETS[:3]),
        st.sampled_from(STATUSES),
        st.sampled_from(["timeout", "no_match", "expired"]),
        st.integers(0, 100),
    ),
    unique_by=lambda row: row[:2],
    max_size=30,
)


def fill(found: list[tuple[int, str, str, str, int]]) -> tuple[sqlite3.Connection, list[Delivery]]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    migrate(db)
    deliveries = [
        delivery(
            f"01HF7YAT0A8CDKSYBCF7B2000{number}",
            target,
            status,
            code=code,
            reason=f"at {failed_ms}",
            handled_ms=T0 + failed_ms,
        )
        for number, target, status, code, failed_ms in found
    ]
    write_deliveries(db, deliveries)
    return db, deliveries


@given(rows)
def test_groups_are_those_of_a_naive_count(found: list[tuple[int, str, str, str, int]]) -> None:
    db, deliveries = fill(found)
    expected: dict[tuple[str, str, bool], list[Delivery]] = defaultdict(list)
    for one in deliveries:
        if one.status in DEAD:
            expected[one.code or "", one.target, one.status == Status.PARTIAL_FAILURE].append(one)
    groups = lookups.dead_letter_groups(db)
    assert [(-group.count, group.code, group.endpoint_hash, group.partial) for group in groups] == sorted(
        (-len(members), *key) for key, members in expected.items()
    )
    for group in groups:
        members = expected[group.code, group.endpoint_hash, group.partial]
        times = [one.handled_ms or 0 for one in members]
        assert (group.oldest_at, group.newest_at) == (min(times), max(times))
        assert group.endpoint_subject == members[0].target_subject
        assert group.sample_reason == f"at {int(group.newest_at - T0)}"
    db.close()


@settings(max_examples=200)
@given(
    rows, st.integers(1, 7), st.none() | st.sampled_from(["timeout", "expired"]), st.none() | st.sampled_from(TARGETS)
)
def test_pages_put_together_are_the_whole(
    found: list[tuple[int, str, str, str, int]], limit: int, code: str | None, target: str | None
) -> None:
    db, deliveries = fill(found)
    expected = sorted(
        (
            (one.message_id, one.target)
            for one in deliveries
            if one.status in DEAD and code in (None, one.code) and target in (None, one.target)
        ),
        reverse=True,
    )
    listed: list[tuple[str, str]] = []
    after = None
    while True:
        meant = Selection.of(DeadLetterFilter(code=code, endpoint=target), T0)
        page = lookups.dead_letter_page(db, meant, after=after, limit=limit)
        assert lookups.count_dead_letters(db, meant) == len(expected)
        assert lookups.dead_letter_keys(db, meant) == expected[::-1]
        listed += [(one.message_id, one.endpoint_hash) for one in page]
        if len(page) < limit:
            break
        after = page[-1].cursor
    assert listed == expected
    db.close()


def test_traces_are_forgotten_by_when_they_were_sent_unless_their_message_is_there(
    db: sqlite3.Connection, new_id: UlidFactory
) -> None:
    kept = {Status.NEW, Status.CUR, Status.FAILED, Status.PARTIAL_FAILURE, Status.NO_SUBSCRIBER}
    old = {status: new_id() for status in STATUSES}
    young = {status: new_id() for status in STATUSES}
    for ids, sent in ((old, T0), (young, T0 + 1)):
        write_deliveries(db, [delivery(message_id, status=status, sent_ms=sent) for status, message_id in ids.items()])
        write_publishes(db, [publish(message_id, sent) for message_id in ids.values()])
    assert lookups.forget_traces(db, T0) == 0
    assert lookups.forget_traces(db, T0 + 1) == len(STATUSES) - len(kept)
    left = {message_id for (message_id,) in db.execute("SELECT message_id FROM deliveries")}
    assert left == {old[status] for status in kept} | set(young.values())
    assert {message_id for (message_id,) in db.execute("SELECT id FROM publishes")} == left
    assert not db.in_transaction


def test_a_checkpoint_empties_the_log(db: sqlite3.Connection, new_id: UlidFactory, tmp_path: Path) -> None:
    write_deliveries(db, [delivery(new_id()) for _ in range(1000)])
    assert (tmp_path / "index.db-wal").stat().st_size > 0
    lookups.checkpoint(db)
    assert (tmp_path / "index.db-wal").stat().st_size == 0
    assert lookups.is_sound(db)


def test_damage_in_the_middle_is_found(db: sqlite3.Connection, new_id: UlidFactory, tmp_path: Path) -> None:
    write_deliveries(db, [delivery(new_id()) for _ in range(5000)])
    lookups.checkpoint(db)
    db.close()
    path = tmp_path / "index.db"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 64] = bytes(byte ^ 0xFF for byte in data[middle : middle + 64])
    path.write_bytes(data)
    damaged = connect(str(path))
    assert not lookups.is_sound(damaged)
    damaged.close()


HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA locking_mode = EXCLUSIVE")
db.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_locked_index_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    made = connect(str(path))
    migrate(made)
    made.close()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        db = sqlite3.connect(path, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            lookups.is_sound(db)
        child.kill()
    assert lookups.is_sound(db)
    db.close()


SOME = Selection.of(DeadLetterFilter(where="code=x !to=relay.*.y from~z subject=s reason~r age>1h replays>0"), T0)
QUERIES: dict[str, Callable[[sqlite3.Connection, Index, str], object]] = {
    "spans": lambda db, index, message_id: lookups.spans(db, message_id),
    "conversation": lambda db, index, message_id: lookups.conversation(db, message_id),
    "parent": lambda db, index, message_id: db.execute(parents._QUERY, (message_id, TARGETS[0])).fetchone(),
    "expired": lambda db, index, message_id: lookups.expired(db, T0, 500),
    "unread": lambda db, index, message_id: lookups.unread(db, T0, 500),
    "groups": lambda db, index, message_id: lookups.dead_letter_groups(db),
    "page": lambda db, index, message_id: lookups.dead_letter_page(db, Selection(), after=message_id, limit=100),
    "page of some": lambda db, index, message_id: lookups.dead_letter_page(db, SOME, after=None, limit=100),
    "count": lambda db, index, message_id: lookups.count_dead_letters(db, SOME),
    "keys": lambda db, index, message_id: lookups.dead_letter_keys(db, SOME),
    "warm": lambda db, index, message_id: index.warm(T0),
    "recent outcomes": lambda db, index, message_id: index.recent_outcomes(100),
    "reconcile": lambda db, index, message_id: db.execute(reindex._WAITING, (TARGETS[0],)).fetchall(),
    "reconcile targets": lambda db, index, message_id: db.execute(reindex._TARGETS).fetchall(),
}


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_asked_often_reads_only_the_rows_it_is_about(
    name: str, db: sqlite3.Connection, new_id: UlidFactory, tmp_path: Path
) -> None:
    ids = [new_id() for _ in range(200)]
    for at, one in enumerate(ids):
        outcome: dict[str, Any] = {"dedupe": one, "result": {}} if at % 3 else {}
        write_publishes(db, [publish(one, T0 + at, **outcome)])
        write_deliveries(db, [delivery(one, TARGETS[at % 5], STATUSES[at % len(STATUSES)], trace_id=ids[at // 7])])
    lookups.checkpoint(db)
    index = Index(tmp_path / "index.db", lambda new, old: None)
    index._file.db = db
    asked: list[str] = []
    db.set_trace_callback(asked.append)
    QUERIES[name](db, index, ids[100])
    db.set_trace_callback(None)
    assert asked
    for sql in asked:
        plan = [step for *_, step in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert [step for step in plan if step.startswith("SCAN") and " USING " not in step] == [], plan
        if name == "unread":  # once an hour
            assert plan == ["SCAN deliveries USING COVERING INDEX waiting", "USE TEMP B-TREE FOR ORDER BY"]
        elif name not in ("groups", "spans", "parent"):  # few rows, whatever the size of the index
            assert [step for step in plan if "TEMP B-TREE" in step] == [], plan

"""Searching traces: every message once, newest first, however small the part that is looked at."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core import AccessRule, RelayConfig, RelayCore, matches_pattern
from relay_core.config import RateLimitConfig, ReliabilityConfig
from relay_core.errors import AccessDenied
from relay_core.messages.delivery import Delivery, Status, TraceSearch, TraceSummary
from relay_core.messages.envelope import Envelope
from relay_core.messages.ids import UlidFactory, first_ulid, is_ulid
from relay_core.records import trace_search
from relay_core.records.rows import write_deliveries
from relay_core.records.schema import connect, migrate
from relay_core.records.trace_search import MESSAGE_STATUSES, WORST_FIRST, search_traces
from relay_core.testing import FakeClock

A, B, S = "relay.agent.a", "relay.agent.b", "relay.agent.s"
SUBJECTS = [A, B, "relay.human.h"]
CONFIG = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))

messages = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(SUBJECTS),
        st.sampled_from(SUBJECTS),
        st.lists(st.sampled_from(WORST_FIRST), min_size=1, max_size=4),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    db = connect(":memory:")
    migrate(db)
    yield db
    db.close()


def fill(db: sqlite3.Connection, found: list[tuple[int, str, str, list[str]]]) -> list[list[Delivery]]:
    """Write messages some milliseconds apart, each with its spans; return them newest first."""
    db.execute("DELETE FROM deliveries")
    clock = FakeClock()
    new_id = UlidFactory(clock)
    made = []
    for later, subject, sender, statuses in found:
        clock.advance(later / 1000)
        message_id, now = new_id(), clock.now_ms()
        budget = (now + 1000, 0, 9, 1, 8, 5, (), 10)
        made.append(
            [
                Delivery(
                    message_id,
                    f"{n:012x}",
                    "endpoint",
                    subject,
                    subject,
                    sender,
                    message_id,
                    None,
                    status,
                    now,
                    *budget,
                )
                for n, status in enumerate(statuses)
            ]
        )
        write_deliveries(db, made[-1])
    return made[::-1]


def everything(db: sqlite3.Connection, search: TraceSearch) -> list[TraceSummary]:
    """Return every page, one after the other."""
    rows: list[TraceSummary] = []
    while True:
        page = search_traces(db, search)
        assert len(page.rows) <= search.limit
        assert page.complete or page.cursor is not None
        if page.complete and page.cursor is not None:
            assert len(page.rows) == search.limit
        rows += page.rows
        if page.cursor is None:
            return rows
        search = search.model_copy(update={"cursor": page.cursor})


@given(
    found=messages,
    status=st.none() | st.sampled_from(MESSAGE_STATUSES),
    subject=st.none() | st.sampled_from([A, "AGENT", "relay.*.h", "x"]),
    sender=st.none() | st.sampled_from([B, "human", "relay.>"]),
    since=st.none() | st.integers(0, 12),
    until=st.none() | st.integers(0, 12),
    limit=st.integers(1, 4),
    step=st.integers(1, 6),
    patient=st.booleans(),
)
def test_pages_put_together_are_the_messages_that_fit(
    database: sqlite3.Connection,
    found: list[tuple[int, str, str, list[str]]],
    status: str | None,
    subject: str | None,
    sender: str | None,
    since: int | None,
    until: int | None,
    limit: int,
    step: int,
    patient: bool,
) -> None:
    start = FakeClock().now_ms()
    low, high = (start + since if since is not None else None), (start + until if until is not None else None)
    expected = []
    for spans in fill(database, found):
        worst = min((span.status for span in spans), key=WORST_FIRST.index)
        worst = Status.PARTIAL if worst == Status.PARTIAL_FAILURE else worst
        one = spans[0]
        if (
            status in (None, worst)
            and _fits(subject, one.subject)
            and _fits(sender, one.sender)
            and (low is None or one.sent_ms >= low)
            and (high is None or one.sent_ms < high)
        ):
            expected.append((one.message_id, worst, len(spans)))
    search = TraceSearch(subject=subject, sender=sender, status=status, since=low, until=high, limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_search, "_STEP_ROWS", step)
        patch.setattr(trace_search, "_LOOK_SECS", 60 if patient else -1)
        rows = everything(database, search)
    assert [(row.message_id, row.status, row.targets) for row in rows] == expected


def _fits(wanted: str | None, subject: str) -> bool:
    if wanted is None:
        return True
    return matches_pattern(subject, wanted) if "*" in wanted or ">" in wanted else wanted.lower() in subject.lower()


def test_an_id_is_found_by_how_it_begins_in_any_case(database: sqlite3.Connection) -> None:
    found = [(1, A, B, [Status.DONE]) for _ in range(40)]
    ids = [spans[0].message_id for spans in fill(database, found)]
    assert [row.message_id for row in everything(database, TraceSearch(id=ids[7].lower()))] == [ids[7]]
    prefix = ids[0][:9]
    expected = [id for id in ids if id.startswith(prefix)]
    assert len(expected) > 1
    assert [row.message_id for row in everything(database, TraceSearch(id=prefix))] == expected
    assert everything(database, TraceSearch(id="x")) == []


def test_a_search_for_what_is_rare_stops_for_now_and_says_how_far_it_came(database: sqlite3.Connection) -> None:
    fill(database, [(1, B if n == 0 else A, S, [Status.DONE]) for n in range(50)])
    search = TraceSearch(subject=B)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_search, "_STEP_ROWS", 10)
        patch.setattr(trace_search, "_LOOK_SECS", -1)
        looks = 0
        while not (page := search_traces(database, search)).rows:
            assert page.complete is False
            assert page.cursor is not None
            search = search.model_copy(update={"cursor": page.cursor})
            looks += 1
    assert looks >= 4


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_span_is_found_wherever_a_step_ends(database: sqlite3.Connection, step: int, at: int) -> None:
    spans = [Status.DONE, Status.DONE, Status.DONE]
    spans[at] = Status.REFUSED
    (newest, searched, _) = fill(
        database, [(1, A, S, [Status.DONE]), (1, A, S, spans), (1, A, S, [Status.DONE, Status.DONE])]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_search, "_STEP_ROWS", step)
        rows = everything(database, TraceSearch(status=Status.REFUSED))
    assert [row.message_id for row in rows] == [searched[0].message_id]
    assert newest[0].message_id > rows[0].message_id


@given(st.integers(-5, 1 << 49))
def test_the_first_ulid_of_a_millisecond_parts_what_was_made_before_from_what_came_after(ms: int) -> None:
    known = min(max(ms, 0), (1 << 48) - 1)
    first = first_ulid(ms)
    assert is_ulid(first + "0" * 16)
    assert first <= first_ulid(known) + "0" * 16
    assert known == 0 or first_ulid(known - 1) + "Z" * 16 < first


async def test_a_row_tells_what_became_of_a_message(relay: RelayCore, clock: FakeClock) -> None:
    async def handle(envelope: Envelope) -> None:
        clock.advance(0.25)
        if envelope.payload == "bad":
            raise ValueError("no")

    await relay.register_endpoint(A)
    await relay.register_endpoint(B)
    waiting = (await relay.publish(B, "waits", sender=S)).message_id
    await relay.subscribe(A, handle)
    good = (await relay.publish(A, "good", sender=S, parent_id=waiting)).message_id
    bad = (await relay.publish(A, "bad", sender=S)).message_id
    lost = (await relay.publish("relay.agent.nobody", 1, sender=S)).message_id
    await relay.idle()
    rows = {row.message_id: row for row in (await relay.search_traces(TraceSearch())).rows}
    assert list(rows) == [lost, bad, good, waiting]
    assert [(row.status, row.code, row.targets) for row in rows.values()] == [
        ("no_subscriber", "no_match", 0),
        ("failed", "handler_failed", 1),
        ("done", None, 1),
        ("new", None, 1),
    ]
    assert (rows[good].parent_id, rows[good].trace_id, rows[good].total_us) == (waiting, waiting, 250_000)
    assert (rows[waiting].total_us, rows[waiting].size) == (None, len('"waits"'))
    plan = await relay.plan_replay([bad])
    await relay.run_replay(plan.id)
    (again,) = (await relay.search_traces(TraceSearch(status="failed"))).rows
    assert (again.message_id, again.replays) == (bad, 1)


async def test_refused_publishes_are_among_them(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    await asyncio.to_thread(relay.bus.access.add_rule, AccessRule(sender=S, to=A, action="deny"))
    with pytest.raises(AccessDenied):
        await relay.publish(A, 1, sender=S)
    (row,) = (await relay.search_traces(TraceSearch(status="refused"))).rows
    assert (row.subject, row.sender, row.targets, row.total_us) == (A, S, 0, None)

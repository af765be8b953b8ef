"""LiveState: whoever applied every update since a full one has what a fresh full one would say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.base import WireModel
from relay_core.messages.dead_letter import DeadLetterGroup
from relay_core.messages.operator_views import AdapterState, ConfiguredAdapter, JobRun, JobState
from relay_core.messages.replay_plan import ReplayOutcome
from relay_core.protocol.live_state import (
    ALIASES,
    SECTIONS,
    LiveBreaker,
    LiveMailbox,
    LiveSender,
    LiveState,
    LiveThroughput,
    StateUpdate,
)
from relay_core.records.events import RECENT, Event, EventKind
from relay_core.records.metrics import Percentiles
from relay_core.rules.breaker import CircuitState, Transition


def throughput(number: int) -> LiveThroughput:
    took = Percentiles(count=number, p50=number / 2, longest=number)
    return LiveThroughput(
        publishes=number,
        bytes=number,
        rate_10s=number / 10,
        rate_60s=number / 60,
        per_second=(0, number),
        deliveries={"handled": number},
        refusals={},
        dead_letters={},
        queue_us=took,
        handle_us=took,
        recent_us=Percentiles(count=0),
        total_us=Percentiles(count=0),
    )


def mailbox(number: int) -> LiveMailbox:
    return LiveMailbox(
        subject="relay.a",
        kind="endpoint",
        registered=True,
        depth=number,
        claimed=0,
        failed=0,
        pressure=number / 10,
        oldest_at=number or None,
        consumers=1,
    )


def adapter(number: int) -> ConfiguredAdapter:
    state = AdapterState(id="hook", state="connected", since=1, patterns=("relay.out.>",), depth=number)
    return ConfiguredAdapter(id="hook", type="webhook", restarts=number, state=state if number else None)


def group(number: int) -> DeadLetterGroup:
    return DeadLetterGroup(
        code="timeout",
        endpoint_hash="h",
        endpoint_subject="relay.a",
        count=number,
        oldest_at=0.5,
        newest_at=float(number),
        sample_reason="slow",
    )


def job(number: int) -> JobState:
    last = JobRun(started_at=number, outcome="ok", counts={"purged": number}) if number else None
    return JobState(name="purge", description="d", schedule="every 60 s", enabled=True, next_run=number, last=last)


def breaker(number: int) -> LiveBreaker:
    return LiveBreaker(
        state=CircuitState.OPEN if number else CircuitState.CLOSED,
        consecutive_failures=number,
        half_open_successes=0,
        forced=False,
        retry_at=number or None,
        transitions=tuple(Transition(at, CircuitState.OPEN, "failed") for at in range(number)),
    )


ROWS: dict[str, Callable[[int], WireModel]] = {
    "mailboxes": mailbox,
    "senders": lambda number: LiveSender(count=number, limit=100, window_secs=60, resets_at=number),
    "breakers": breaker,
    "adapters": adapter,
    "dead_letters": group,
    "jobs": job,
    "replays": lambda number: ReplayOutcome(delivered=number, failed=0, skipped=0),
}


@dataclass
class Picture:
    """Everything there is at one moment: each row by a number that says what is in it."""

    rows: dict[str, dict[str, int]]
    counted: int
    fresh: int
    """Events since the picture before."""
    problems: tuple[str, ...]
    is_full: bool
    """Whether it is sent as a whole."""
    events: tuple[Event, ...] = field(default=())


keys = st.sampled_from(["a", "b", "c", "d"])
pictures = st.builds(
    Picture,
    rows=st.fixed_dictionaries({name: st.dictionaries(keys, st.integers(0, 3)) for name in SECTIONS}),
    counted=st.integers(0, 3),
    fresh=st.integers(0, 3) | st.just(RECENT + 1),
    problems=st.lists(st.sampled_from(["p", "q"]), max_size=2).map(tuple),
    is_full=st.booleans(),
)


def full(picture: Picture, at: int) -> StateUpdate:
    sections: dict[str, Any] = {
        name: {key: ROWS[name](number) for key, number in rows.items()} for name, rows in picture.rows.items()
    }
    return StateUpdate(
        full=True,
        at=at,
        throughput=throughput(picture.counted),
        events=picture.events,
        problems=picture.problems,
        **sections,
    )


def change(before: Picture, after: Picture, at: int) -> StateUpdate:
    sections: dict[str, Any] = {
        name: {key: ROWS[name](number) for key, number in rows.items() if before.rows[name].get(key) != number}
        for name, rows in after.rows.items()
    }
    gone = {ALIASES[name]: tuple(before.rows[name].keys() - after.rows[name].keys()) for name in SECTIONS}
    return StateUpdate(
        at=at,
        throughput=throughput(after.counted) if after.counted != before.counted else None,
        events=after.events[len(after.events) - min(after.fresh, RECENT) :],
        problems=after.problems if after.problems != before.problems else None,
        gone={name: left for name, left in gone.items() if left},
        **sections,
    )


def sent(update: StateUpdate) -> StateUpdate:
    """Return an update as the other side reads it."""
    return StateUpdate.model_validate(orjson.loads(orjson.dumps(update.to_wire())))


@given(st.lists(pictures, min_size=1, max_size=8))
def test_updates_put_together_equal_a_fresh_full_one(story: list[Picture]) -> None:
    state = LiveState()
    noted: tuple[Event, ...] = ()
    for at, picture in enumerate(story):
        first = len(noted) and noted[-1].time + 1
        noted += tuple(Event(time=first + number, kind=EventKind.JOB) for number in range(picture.fresh))
        picture.events = noted[-RECENT:]
        whole = at == 0 or picture.is_full
        state.apply(sent(full(picture, at) if whole else change(story[at - 1], picture, at)))
        fresh = LiveState()
        fresh.apply(full(picture, at))
        assert vars(state) == vars(fresh)


@given(pictures)
def test_an_update_comes_through_the_wire_unchanged(picture: Picture) -> None:
    update = full(picture, 5)
    assert sent(update) == update


def test_every_section_has_rows_and_a_name_on_the_wire() -> None:
    assert list(ROWS) == list(SECTIONS)
    assert ALIASES["dead_letters"] == "deadLetters"
    assert set(SECTIONS) < set(vars(LiveState()))
    assert set(vars(LiveState())) == set(StateUpdate.model_fields) - {"full", "gone"}


def test_what_went_may_be_unknown() -> None:
    state = LiveState()
    state.apply(StateUpdate(at=1, gone={"mailboxes": ("a",), "of a newer server": ("b",)}))
    assert state.mailboxes == {}


def test_counts_have_the_names_that_metrics_gives_them() -> None:
    assert {"rate10s", "rate60s"} <= throughput(1).to_wire().keys()

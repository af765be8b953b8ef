"""The fake clock moves only when told to, and its timers with it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.clock import Clock, Timer, call_later, sleep
from relay_core.testing import FakeClock


def test_it_is_a_clock_that_stands_still() -> None:
    clock: Clock = FakeClock(now_ms=5)
    assert (clock.now_ms(), clock.now_ms()) == (5, 5)
    assert clock.monotonic() == clock.monotonic()


def test_advancing_moves_both_clocks(clock: FakeClock) -> None:
    wall, monotonic = clock.now_ms(), clock.monotonic()
    clock.advance(1.5)
    assert (clock.now_ms() - wall, clock.monotonic() - monotonic) == (1500, 1.5)


def test_many_small_steps_add_up_exactly(clock: FakeClock) -> None:
    wall, monotonic = clock.now_ms(), clock.monotonic()
    for _ in range(10):
        clock.advance(0.1)
    assert (clock.now_ms() - wall, clock.monotonic() - monotonic) == (1000, 1.0)


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
def test_a_jump_moves_only_the_wall_clock(seconds: int, clock: FakeClock) -> None:
    wall, monotonic = clock.now_ms(), clock.monotonic()
    clock.jump_wall(seconds)
    assert (clock.now_ms() - wall, clock.monotonic() - monotonic) == (seconds * 1000, 0.0)


def test_time_does_not_go_back(clock: FakeClock) -> None:
    with pytest.raises(ValueError, match="jump_wall"):
        clock.advance(-1)


@given(st.lists(st.integers(0, 50), max_size=20), st.lists(st.integers(0, 20), max_size=6))
def test_timers_fire_once_in_order_of_time_each_at_its_own_moment(delays: list[int], steps: list[int]) -> None:
    clock = FakeClock()
    start = clock.now_ms()
    fired: list[tuple[int, int, int]] = []
    for order, delay in enumerate(delays):

        def callback(order: int = order, delay: int = delay) -> None:
            fired.append((clock.now_ms() - start, delay * 1000, order))

        clock.call_later(delay, callback)
    assert fired == []
    for step in steps:
        clock.advance(step)
    due = sorted((delay * 1000, order) for order, delay in enumerate(delays) if steps and delay <= sum(steps))
    assert fired == [(delay, delay, order) for delay, order in due]


def test_a_cancelled_timer_does_not_fire(clock: FakeClock) -> None:
    fired: list[str] = []
    timer: Timer = clock.call_later(1, lambda: fired.append("cancelled"))
    clock.call_later(1, lambda: fired.append("kept"))
    timer.cancel()
    timer.cancel()
    clock.advance(2)
    timer.cancel()
    assert fired == ["kept"]


def test_a_callback_may_cancel_a_timer_of_the_same_moment(clock: FakeClock) -> None:
    fired: list[str] = []
    timers: list[Timer] = []
    clock.call_later(1, lambda: timers[0].cancel())
    timers.append(clock.call_later(1, lambda: fired.append("too late")))
    clock.advance(1)
    assert fired == []


def test_a_timer_set_by_a_callback_fires_within_the_same_advance_if_due(clock: FakeClock) -> None:
    start = clock.now_ms()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(clock.now_ms() - start)
        clock.call_later(1, tick)

    clock.call_later(1, tick)
    clock.advance(3.5)
    assert ticks == [1000, 2000, 3000]


def test_a_jump_of_the_wall_clock_moves_no_timer(clock: FakeClock) -> None:
    fired: list[int] = []
    clock.call_later(10, lambda: fired.append(1))
    clock.jump_wall(3_600)
    clock.advance(9.999)
    assert fired == []
    clock.advance(0.001)
    assert fired == [1]


def test_a_timer_that_is_overdue_waits_for_the_next_advance(clock: FakeClock) -> None:
    fired: list[int] = []
    clock.call_later(-5, lambda: fired.append(1))
    assert fired == []
    clock.advance(0)
    assert fired == [1]


def test_a_callback_may_advance_the_clock(clock: FakeClock) -> None:
    start = clock.now_ms()
    fired: list[int] = []
    clock.call_later(1, lambda: clock.advance(5))
    clock.call_later(2, lambda: fired.append(clock.now_ms() - start))
    clock.advance(3)
    assert fired == [2000]
    assert clock.now_ms() - start == 6000


def test_a_callback_that_raises_loses_no_other_timer(clock: FakeClock) -> None:
    fired: list[int] = []
    clock.call_later(1, lambda: [][0])
    clock.call_later(2, lambda: fired.append(1))
    with pytest.raises(IndexError):
        clock.advance(5)
    clock.advance(5)
    assert fired == [1]


async def test_relays_own_sleep_waits_for_the_fake_clock(clock: FakeClock) -> None:
    async with asyncio.TaskGroup() as group:
        sleeper = group.create_task(sleep(clock, 60))
        await asyncio.sleep(0)
        clock.advance(59)
        await asyncio.sleep(0)
        assert not sleeper.done()
        clock.advance(1)
    assert sleeper.done()


async def test_call_later_uses_the_clocks_own_timers(clock: FakeClock) -> None:
    fired: list[int] = []
    call_later(clock, 5, lambda: fired.append(1))
    clock.advance(5)
    assert fired == [1]

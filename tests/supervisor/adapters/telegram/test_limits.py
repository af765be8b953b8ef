from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_core.tasks import Tasks
from relay_core.testing import FakeClock
from relay_supervisor.adapters.telegram.limits import RateLimits

CHATS = (1, 2, -1, -2)
NEAR = 1e-5
PATIENCE_SECS = 1e6

steps = st.lists(st.tuples(st.sampled_from(CHATS), st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.5])), max_size=80)


class Course:
    """Calls that ask for their turn, and when each asked and went out."""

    def __init__(self, limits: RateLimits, clock: FakeClock) -> None:
        self.limits = limits
        self.clock = clock
        self.start = clock.monotonic()
        self.gone: list[tuple[int, float, float]] = []
        self._tasks = Tasks()

    @property
    def now(self) -> float:
        return round(self.clock.monotonic() - self.start, 6)

    def ask(self, chat: int) -> None:
        self._tasks.start(self._ask(chat, self.now), name=f"call for {chat}")

    async def _ask(self, chat: int, asked: float) -> None:
        await self.limits.acquire(chat, PATIENCE_SECS)
        self.gone.append((chat, asked, self.now))

    async def settle(self) -> None:
        """Let everybody run who need not wait for the clock."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move on from timer to timer."""
        end = self.now + seconds
        await self.settle()
        while True:
            due = [(at / 1e9) - self.start for at, _, timer in self.clock._timers]
            step = min([at for at in due if at > self.now], default=end)
            if step > end:
                break
            self.clock.advance(max(step - self.now, 0.0))
            await self.settle()
            if step >= end:
                break
        self.clock.advance(max(end - self.now, 0.0))
        await self.settle()

    async def finish(self) -> None:
        while self._tasks:
            await self.advance(1)


@settings(max_examples=25)
@given(steps)
async def test_no_window_has_too_many_calls_and_no_call_waits_without_need(steps: list[tuple[int, float]]) -> None:
    clock = FakeClock()
    course = Course(RateLimits(clock), clock)
    for chat, pause in steps:
        if pause:
            await course.advance(pause)
        course.ask(chat)
    await course.finish()
    windows = [*(((chat,), 1, 1.0) for chat in CHATS), ((-1,), 20, 60.0), ((-2,), 20, 60.0), (CHATS, 30, 1.0)]
    for chats, most, seconds in windows:
        times = [at for chat, _, at in course.gone if chat in chats]
        assert all(last - first >= seconds - NEAR for first, last in zip(times, times[most:], strict=False))
    for index, (chat, asked, at) in enumerate(course.gone):
        if at - asked > NEAR:  # then a window that holds for it was full until that very moment
            full = [
                [before for other, _, before in course.gone[:index] if other in chats][-most] + seconds
                for chats, most, seconds in windows
                if chat in chats and sum(other in chats for other, _, _ in course.gone[:index]) >= most
            ]
            assert any(abs(until - at) < NEAR for until in full)


async def test_a_group_at_its_limit_delays_no_other_chat(clock: FakeClock) -> None:
    course = Course(RateLimits(clock), clock)
    for _ in range(25):
        course.ask(-5)
    await course.advance(21)
    assert course.limits.wait(-5) > 30
    for chat in range(1, 60):
        course.ask(chat)
        await course.advance(0.1)
    assert [at - asked for chat, asked, at in course.gone if chat > 0] == [0.0] * 59
    await course.finish()
    assert [at for chat, _, at in course.gone if chat == -5] == [*map(float, range(20)), 60, 61, 62, 63, 64]


async def test_a_burst_over_all_chats_is_spread_in_order(clock: FakeClock) -> None:
    course = Course(RateLimits(clock), clock)
    for chat in range(1, 62):
        course.ask(chat)
    await course.finish()
    assert [at for _, _, at in course.gone] == [0.0] * 30 + [1.0] * 30 + [2.0]
    assert [chat for chat, _, _ in course.gone] == list(range(1, 62))


async def test_a_hold_keeps_one_chat_quiet_also_those_who_waited_before(clock: FakeClock) -> None:
    course = Course(RateLimits(clock), clock)
    for chat in (1, 1, 2):
        course.ask(chat)
    await course.settle()
    course.limits.hold(1, 30)
    await course.advance(29)
    course.ask(2)
    await course.finish()
    assert course.gone == [(1, 0.0, 0.0), (2, 0.0, 0.0), (2, 29.0, 29.0), (1, 0.0, 30.0)]


async def test_a_hold_that_comes_while_a_chat_waits_for_the_window_over_all_counts(clock: FakeClock) -> None:
    course = Course(RateLimits(clock), clock)
    for chat in range(1, 33):
        course.ask(chat)
    await course.settle()
    course.limits.hold(31, 30)
    await course.finish()
    assert [(chat, at) for chat, _, at in course.gone[30:]] == [(32, 1.0), (31, 30.0)]


async def test_an_optional_call_never_goes_ahead(clock: FakeClock) -> None:
    limits = RateLimits(clock)
    course = Course(limits, clock)
    assert limits.try_acquire(1)
    assert not limits.try_acquire(1)
    course.ask(1)
    await course.settle()
    clock.advance(1)  # there is room, and a call waits for it
    assert not limits.try_acquire(1)
    assert limits.wait(1) > 0
    await course.finish()


@pytest.mark.parametrize("rival", [False, True], ids=["alone", "behind another"])
async def test_patience_ends_and_takes_no_place(clock: FakeClock, rival: bool) -> None:
    limits = RateLimits(clock)
    course = Course(limits, clock)
    limits.hold(1, 100)
    if rival:
        course.ask(1)
        await course.settle()
    waiting = asyncio.gather(limits.acquire(1, patience=10))
    await course.advance(11)
    assert waiting.done()
    assert list(await waiting) == [False]
    await course.advance(90)
    assert [at for _, _, at in course.gone] == [100.0] * rival
    assert limits.try_acquire(1)

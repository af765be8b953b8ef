"""The fake clock moves only when told to, and its timers with it; the compliance suite finds bad adapters out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope
from relay_core.clock import Clock, Timer, call_later, sleep
from relay_core.testing import ADAPTER_CHECKS, AdapterCase, ComplianceError, FakeClock, check_adapter
from tests.kit.adapters import SampleAdapter, hang, refuse


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


# The compliance suite


THE_SAME = SampleAdapter()


def good() -> SampleAdapter:
    return SampleAdapter()


def failing() -> SampleAdapter:
    return SampleAdapter(platform=refuse)


def slow() -> SampleAdapter:
    return SampleAdapter(platform=hang)


class ConnectsLater(SampleAdapter):
    """A good adapter whose platform takes a while to answer."""

    announces = True
    connecting: asyncio.TimerHandle | None = None

    async def start(self, context: AdapterContext) -> None:
        self.contexts.append(context)
        self.status = AdapterStatus("starting")
        self.connecting = asyncio.get_running_loop().call_soon(self._connected)  # type: ignore[assignment]

    async def stop(self) -> None:
        if self.connecting is not None:
            self.connecting.cancel()
        await super().stop()

    def _connected(self) -> None:
        self.set_status(AdapterStatus("connected"), announce=self.announces)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(good, id="awaited"),
        pytest.param(lambda: SampleAdapter(detached=True), id="detached"),
        pytest.param(lambda: SampleAdapter(rate=1000), id="with a rate"),
        pytest.param(ConnectsLater, id="connects later"),
    ],
)
async def test_a_good_adapter_is_compliant(make: Callable[[], SampleAdapter]) -> None:
    await check_adapter(make, subject="relay.out.chat", make_failing=failing, make_slow=slow, patience=5)


class NoAdapter:
    id = "none"


class StartsConnected(SampleAdapter):
    def __init__(self) -> None:
        super().__init__()
        self.status = AdapterStatus("connected")


class FailsToStart(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        raise ConnectionError("nobody there")


class HidesItsError(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        self.status = AdapterStatus("error", "bad token")


class NeverConnects(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        self.status = AdapterStatus("starting")


class Silent(ConnectsLater):
    announces = False


class ForgetsItsStatus(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        self.status = "connected"  # type: ignore[assignment]


class StopsOnlyOnce(SampleAdapter):
    async def stop(self) -> None:
        await super().stop()
        if self.stops > 1 and self.contexts:
            raise RuntimeError("not running")


class MustBeStarted(SampleAdapter):
    async def stop(self) -> None:
        self.contexts[-1].logger.info("bye")
        await super().stop()


class StaysConnected(SampleAdapter):
    async def stop(self) -> None:
        self.stops += 1


class StartsOnlyOnce(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        if self.contexts:
            raise RuntimeError("already used")
        await super().start(context)


class LeavesATask(SampleAdapter):
    async def start(self, context: AdapterContext) -> None:
        await super().start(context)
        self.poller = asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="poller")


class ReturnsNothing(SampleAdapter):
    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return None  # type: ignore[return-value]


class ClaimsSuccess(SampleAdapter):
    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=True)


class Exclusive(SampleAdapter):
    running = False

    async def start(self, context: AdapterContext) -> None:
        if Exclusive.running:
            raise RuntimeError("one at a time")
        Exclusive.running = True
        await super().start(context)

    async def stop(self) -> None:
        Exclusive.running = False
        await super().stop()


class CannotStopWhileBusy(SampleAdapter):
    async def stop(self) -> None:
        if self.log:
            raise RuntimeError("busy")
        await super().stop()


class HangsOnStop(SampleAdapter):
    async def stop(self) -> None:
        if self.log:
            await asyncio.Event().wait()
        await super().stop()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(NoAdapter, "adapter none: start must be an async method", id="no adapter at all"),
        pytest.param(lambda: THE_SAME, "a new adapter each time", id="always the same one"),
        pytest.param(lambda: SampleAdapter(patterns=["relay.in.>"]), "none of its patterns", id="other patterns"),
        pytest.param(StartsConnected, "status is connected before start", id="connected before start"),
        pytest.param(FailsToStart, "start raised ConnectionError: nobody there", id="does not start"),
        pytest.param(HidesItsError, r"start left the status error \(bad token\)", id="hides that it did not start"),
        pytest.param(NeverConnects, "its status is not connected within", id="never connects"),
        pytest.param(Silent, "without context.status_changed", id="does not say that it is connected"),
        pytest.param(ForgetsItsStatus, "status must be an AdapterStatus, not str", id="status of another type"),
        pytest.param(StopsOnlyOnce, "a second stop raised RuntimeError", id="stops only once"),
        pytest.param(MustBeStarted, "not started raised IndexError", id="cannot be stopped unstarted"),
        pytest.param(StaysConnected, "still connected after stop", id="stays connected"),
        pytest.param(StartsOnlyOnce, "start after stop raised RuntimeError: already used", id="starts only once"),
        pytest.param(LeavesATask, "left tasks behind after stop: poller", id="leaves a task"),
        pytest.param(ReturnsNothing, "must return a DeliveryResult, not NoneType", id="returns nothing"),
        pytest.param(failing, "should succeed failed: chat not found", id="does not deliver"),
        pytest.param(Exclusive, "replacement raised RelayError: .* one at a time", id="cannot be replaced"),
        pytest.param(HangsOnStop, "stop after a delivery: not done within 0.3 s", id="hangs in its stop"),
    ],
)
async def test_a_bad_adapter_is_found_out(make: Callable[[], SampleAdapter], problem: str) -> None:
    with pytest.raises(ComplianceError, match=problem):
        await check_adapter(make, subject="relay.out.chat", make_slow=slow, patience=0.3)
    for task in asyncio.all_tasks():
        if task.get_name() == "poller":
            task.cancel()


async def test_an_adapter_that_hides_its_failures_is_found_out() -> None:
    with pytest.raises(ComplianceError, match="refused was reported as delivered"):
        await check_adapter(good, subject="relay.out.chat", make_failing=ClaimsSuccess)


async def test_an_adapter_that_cannot_be_stopped_while_it_delivers_is_found_out() -> None:
    with pytest.raises(ComplianceError, match="still connected after a stop during a delivery"):
        await check_adapter(
            good, subject="relay.out.chat", make_slow=lambda: CannotStopWhileBusy(platform=hang), patience=5
        )


async def test_the_checks_can_be_run_one_by_one() -> None:
    case = AdapterCase(good, "relay.out.chat", {"content": "hi"})
    for check in ADAPTER_CHECKS:
        await check(case)

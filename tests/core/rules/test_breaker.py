"""A breaker opens, waits, probes and closes: rule by rule, then against an independent model."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relay_core.config import CircuitBreakerConfig
from relay_core.errors import ConfigError
from relay_core.rules.breaker import KEPT_TRANSITIONS, BreakerVerdict, CircuitBreakers, CircuitState
from relay_core.testing import FakeClock

CLOSED, OPEN, HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
KEY = "ab12cd34ef56"


def breakers(clock: FakeClock, **config: Any) -> CircuitBreakers:
    return CircuitBreakers(config, clock)


def trip(circuit: CircuitBreakers, key: str = KEY, failures: int = 5) -> None:
    for _ in range(failures):
        circuit.record_failure(key)
    assert circuit.states()[key].state is OPEN


def half_open(circuit: CircuitBreakers, clock: FakeClock) -> None:
    trip(circuit)
    clock.advance(30)
    assert circuit.check(KEY) == BreakerVerdict(True, None, HALF_OPEN)


def state(circuit: CircuitBreakers) -> CircuitState:
    return circuit.states()[KEY].state


class TestClosed:
    def test_an_unknown_target_is_admitted(self, clock: FakeClock) -> None:
        assert breakers(clock).check(KEY) == BreakerVerdict(True, None, CLOSED)

    def test_it_opens_at_the_threshold_and_not_before(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        for failures in range(1, 5):
            circuit.record_failure(KEY)
            assert circuit.check(KEY).allowed
            assert circuit.states()[KEY].consecutive_failures == failures
        circuit.record_failure(KEY)
        assert circuit.check(KEY) == BreakerVerdict(False, f"circuit open for endpoint {KEY}", OPEN)

    def test_only_failures_in_a_row_count(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        for _ in range(10):
            for _ in range(4):
                circuit.record_failure(KEY)
            circuit.record_success(KEY)
        assert state(circuit) is CLOSED
        assert circuit.states()[KEY].consecutive_failures == 0

    def test_targets_fail_alone(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        assert circuit.check("other").allowed

    def test_releasing_changes_nothing(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        circuit.release(KEY)
        circuit.record_success(KEY)
        assert circuit.states() == {}


class TestOpen:
    def test_it_refuses_until_the_cooldown_is_over(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        clock.advance(29.999)
        assert not circuit.check(KEY).allowed
        clock.advance(0.001)
        assert circuit.check(KEY) == BreakerVerdict(True, None, HALF_OPEN)

    def test_a_wall_clock_that_jumps_does_not_end_the_cooldown(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        clock.jump_wall(3_600)
        assert not circuit.check(KEY).allowed
        clock.jump_wall(-7_200)
        clock.advance(30)
        assert circuit.check(KEY).allowed

    @pytest.mark.parametrize("outcome", ["record_success", "record_failure", "release"])
    def test_late_outcomes_change_nothing(self, outcome: str, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        clock.advance(29)
        before = circuit.states()
        for _ in range(10):
            getattr(circuit, outcome)(KEY)
        assert circuit.states() == before
        clock.advance(1)
        assert circuit.check(KEY).allowed, "a late failure does not extend the cooldown"

    def test_looking_does_not_move_it(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        clock.advance(30)
        assert circuit.retry_in(KEY) == 0
        assert state(circuit) is OPEN

    def test_the_shortest_cooldown_is_a_second(self, clock: FakeClock) -> None:
        circuit = breakers(clock, cooldown_ms=1_000)
        trip(circuit)
        clock.advance(0.999)
        assert not circuit.check(KEY).allowed
        clock.advance(0.001)
        assert circuit.check(KEY) == BreakerVerdict(True, None, HALF_OPEN)
        with pytest.raises(ConfigError, match=r"cooldownMs.*greater than or equal to 1000"):
            breakers(clock, cooldown_ms=999)


class TestHalfOpen:
    @pytest.mark.parametrize("probes", [1, 2, 5])
    def test_it_admits_so_many_probes_at_once(self, probes: int, clock: FakeClock) -> None:
        circuit = breakers(clock, half_open_probe_count=probes)
        trip(circuit)
        clock.advance(30)
        assert [circuit.check(KEY).allowed for _ in range(probes + 3)] == [True] * probes + [False] * 3
        assert circuit.check(KEY) == BreakerVerdict(False, f"circuit open for endpoint {KEY}", HALF_OPEN)

    def test_a_released_probe_makes_room_and_decides_nothing(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        before = circuit.states()[KEY]
        circuit.release(KEY)
        after = circuit.states()[KEY]
        assert (after.state, after.half_open_successes) == (HALF_OPEN, before.half_open_successes)
        assert circuit.check(KEY).allowed
        assert not circuit.check(KEY).allowed

    def test_releasing_too_often_makes_no_more_room(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        for _ in range(5):
            circuit.release(KEY)
        assert [circuit.check(KEY).allowed for _ in range(2)] == [True, False]

    def test_enough_successes_close_it(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        circuit.record_success(KEY)
        assert state(circuit) is HALF_OPEN
        assert circuit.check(KEY) == BreakerVerdict(True, None, HALF_OPEN)
        circuit.record_success(KEY)
        assert circuit.check(KEY) == BreakerVerdict(True, None, CLOSED)
        view = circuit.states()[KEY]
        assert (view.consecutive_failures, view.opened_at, view.half_open_successes) == (0, None, 0)

    def test_one_failure_opens_it_for_another_cooldown(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        circuit.record_success(KEY)
        circuit.check(KEY)
        circuit.record_failure(KEY)
        view = circuit.states()[KEY]
        assert (view.state, view.half_open_successes, view.opened_at) == (OPEN, 0, clock.now_ms())
        clock.advance(29.999)
        assert not circuit.check(KEY).allowed
        clock.advance(0.001)
        assert circuit.check(KEY).allowed
        circuit.record_success(KEY)
        assert state(circuit) is HALF_OPEN, "successes of the round before do not count"

    def test_a_probe_still_out_when_the_next_round_begins_keeps_its_permit(self, clock: FakeClock) -> None:
        circuit = breakers(clock, half_open_probe_count=2)
        trip(circuit)
        clock.advance(30)
        assert circuit.check(KEY).allowed
        assert circuit.check(KEY).allowed
        circuit.record_failure(KEY)
        clock.advance(30)
        assert [circuit.check(KEY).allowed for _ in range(2)] == [True, False]


class TestRetryIn:
    def test_it_counts_down_to_the_probe(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        assert circuit.retry_in(KEY) == 0
        trip(circuit)
        assert circuit.retry_in(KEY) == 30
        clock.advance(12.5)
        assert circuit.retry_in(KEY) == 17.5
        assert circuit.states()[KEY].retry_in_ms == 17_500
        clock.advance(17.5)
        assert circuit.retry_in(KEY) == 0
        clock.advance(100)
        assert circuit.retry_in(KEY) == 0

    def test_waiting_exactly_so_long_is_enough(self, clock: FakeClock) -> None:
        circuit = breakers(clock, cooldown_ms=1_100)
        for _ in range(50):
            clock.advance(0.1)
            trip(circuit)
            clock.advance(circuit.retry_in(KEY))
            assert circuit.check(KEY).allowed
            circuit.reset(KEY)

    def test_while_every_probe_is_out_it_is_a_pace_to_ask_again(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        assert circuit.retry_in(KEY) == 30
        circuit.release(KEY)
        assert circuit.retry_in(KEY) == 0

    def test_it_has_no_end_while_forced_open(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        circuit.force(KEY, OPEN, "maintenance")
        assert circuit.retry_in(KEY) == inf
        assert circuit.states()[KEY].retry_in_ms is None


class TestOperator:
    def test_a_reset_closes_and_forgets_the_failures(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        circuit.reset(KEY)
        assert circuit.check(KEY) == BreakerVerdict(True, None, CLOSED)
        for _ in range(4):
            circuit.record_failure(KEY)
        assert state(circuit) is CLOSED

    def test_a_reset_takes_back_every_permit(self, clock: FakeClock) -> None:
        circuit = breakers(clock, failure_threshold=1, half_open_probe_count=2)
        for _ in range(2):
            trip(circuit, failures=1)
            clock.advance(30)
            assert [circuit.check(KEY).allowed for _ in range(3)] == [True, True, False]
            circuit.reset(KEY)

    def test_a_reset_of_a_closed_breaker_is_no_transition(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        circuit.record_failure(KEY)
        circuit.reset(KEY)
        circuit.reset("unknown")
        assert circuit.states()[KEY].consecutive_failures == 0
        assert circuit.states()[KEY].transitions == ()
        assert "unknown" not in circuit.states()

    def test_forced_open_stays_open_until_reset(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        circuit.force(KEY, OPEN, "maintenance")
        clock.advance(1_000_000)
        circuit.record_success(KEY)
        assert circuit.check(KEY) == BreakerVerdict(False, f"circuit open for endpoint {KEY}", OPEN)
        assert circuit.states()[KEY].forced
        circuit.reset(KEY)
        assert circuit.check(KEY).allowed
        assert not circuit.states()[KEY].forced

    def test_forced_open_holds_while_breakers_are_disabled(self, clock: FakeClock) -> None:
        circuit = breakers(clock, enabled=False)
        circuit.force(KEY, OPEN, "maintenance")
        assert not circuit.check(KEY).allowed
        assert circuit.retry_in(KEY) == inf

    def test_forcing_closed_ends_any_state(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        circuit.force(KEY, OPEN, "maintenance")
        circuit.force(KEY, CLOSED, "done")
        assert circuit.check(KEY) == BreakerVerdict(True, None, CLOSED)
        trip(circuit)
        assert not circuit.check(KEY).allowed, "and is no promise for the future"

    def test_half_open_cannot_be_forced(self, clock: FakeClock) -> None:
        with pytest.raises(ValueError, match="not HALF_OPEN"):
            breakers(clock).force(KEY, HALF_OPEN, "why not")

    def test_forgetting_drops_the_breaker(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        circuit.forget(KEY)
        circuit.forget(KEY)
        assert circuit.states() == {}
        assert circuit.check(KEY).allowed

    def test_a_breaker_that_is_forgotten_while_open_is_told_to_be_closed(self, clock: FakeClock) -> None:
        told: list[tuple[str, CircuitState, CircuitState, str]] = []
        circuit = CircuitBreakers(None, clock, lambda *change: told.append(change))
        trip(circuit)
        circuit.forget(KEY)
        assert told[-1] == (KEY, OPEN, CLOSED, "its target is gone")


class TestHistory:
    def test_every_transition_is_told_once_with_its_reason(self, clock: FakeClock) -> None:
        told: list[tuple[str, CircuitState, CircuitState, str]] = []
        circuit = CircuitBreakers(None, clock, lambda *change: told.append(change))
        half_open(circuit, clock)
        circuit.record_failure(KEY)
        clock.advance(30)
        for _ in range(2):
            circuit.check(KEY)
            circuit.record_success(KEY)
        circuit.force(KEY, OPEN, "maintenance")
        circuit.force(KEY, OPEN, "longer maintenance")
        circuit.reset(KEY, "done")
        assert told == [
            (KEY, CLOSED, OPEN, "consecutive failures: 5"),
            (KEY, OPEN, HALF_OPEN, "cooldown over"),
            (KEY, HALF_OPEN, OPEN, "probe failed"),
            (KEY, OPEN, HALF_OPEN, "cooldown over"),
            (KEY, HALF_OPEN, CLOSED, "successful probes: 2"),
            (KEY, CLOSED, OPEN, "maintenance"),
            (KEY, OPEN, CLOSED, "done"),
        ]
        assert [(new, why) for _, new, why in circuit.states()[KEY].transitions] == [
            *((new, why) for _, _, new, why in told[:-1]),
            (OPEN, "longer maintenance"),
            (CLOSED, "done"),
        ]

    def test_a_listener_sees_the_new_state(self, clock: FakeClock) -> None:
        seen: list[CircuitState] = []
        circuit = CircuitBreakers(None, clock, lambda *_: seen.append(state(circuit)))
        half_open(circuit, clock)
        assert seen == [OPEN, HALF_OPEN]

    def test_transitions_carry_wall_time_and_only_the_recent_ones_are_kept(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        for turn in range(KEPT_TRANSITIONS):
            clock.advance(1)
            circuit.force(KEY, OPEN, f"{turn}")
            circuit.reset(KEY)
        transitions = circuit.states()[KEY].transitions
        assert len(transitions) == KEPT_TRANSITIONS
        assert transitions[-1] == (clock.now_ms(), CLOSED, "reset")

    def test_a_view_is_a_copy_with_wire_names(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        opened_at = clock.now_ms()
        trip(circuit)
        view = circuit.states()[KEY]
        clock.advance(30)
        circuit.check(KEY)
        assert view.to_wire() == {
            "key": KEY,
            "state": "OPEN",
            "consecutiveFailures": 5,
            "openedAt": opened_at,
            "halfOpenSuccesses": 0,
            "retryInMs": 30_000,
            "forced": False,
            "transitions": [[opened_at, "OPEN", "consecutive failures: 5"]],
        }


class TestConfig:
    def test_disabled_breakers_admit_everything_and_count_nothing(self, clock: FakeClock) -> None:
        circuit = breakers(clock, enabled=False)
        for _ in range(50):
            circuit.record_failure(KEY)
            assert circuit.check(KEY) == BreakerVerdict(True, None, CLOSED)
        assert circuit.states()[KEY].consecutive_failures == 0

    def test_disabling_and_enabling_again_keeps_the_state(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        circuit.update_config({"enabled": False})
        assert circuit.check(KEY).allowed
        assert circuit.retry_in(KEY) == 0
        circuit.update_config({"enabled": True})
        assert not circuit.check(KEY).allowed

    def test_a_probe_that_reports_while_disabled_still_gives_its_permit_back(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        half_open(circuit, clock)
        circuit.update_config({"enabled": False})
        circuit.record_failure(KEY)
        circuit.update_config({"enabled": True})
        assert circuit.check(KEY) == BreakerVerdict(True, None, HALF_OPEN)

    def test_new_thresholds_apply_to_old_states(self, clock: FakeClock) -> None:
        circuit = breakers(clock)
        trip(circuit)
        clock.advance(10)
        circuit.update_config(CircuitBreakerConfig(cooldown_ms=10_000, success_to_close=1))
        assert circuit.check(KEY).allowed
        circuit.record_success(KEY)
        assert state(circuit) is CLOSED
        circuit.record_failure(KEY)
        circuit.update_config({"failure_threshold": 2})
        circuit.record_failure(KEY)
        assert state(circuit) is OPEN

    @pytest.mark.parametrize("key", ["cooldown_ms", "cooldownMs"])
    def test_a_partial_update_keeps_the_other_keys(self, key: str, clock: FakeClock) -> None:
        circuit = breakers(clock, failure_threshold=2, cooldown_ms=7_000)
        circuit.update_config({key: 1_000})
        trip(circuit, failures=2)
        assert circuit.retry_in(KEY) == 1

    @pytest.mark.parametrize(
        ("change", "says"),
        [({"cooldown": 1}, "did you mean 'cooldownMs'"), ({"failureThreshold": 0}, "got 0")],
        ids=["unknown-key", "bad-value"],
    )
    def test_a_bad_update_is_named_and_changes_nothing(
        self, change: dict[str, Any], says: str, clock: FakeClock
    ) -> None:
        circuit = breakers(clock)
        with pytest.raises(ConfigError, match=says):
            circuit.update_config(change)
        trip(circuit)
        assert circuit.retry_in(KEY) == 30


class BreakerAgainstModel(RuleBasedStateMachine):
    """The model keeps the whole story and answers from it; it knows states only as words.

    `opened` is when it last opened (None: closed), `probing` whether a probe was let through since then.
    """

    COOLDOWN_MS = 5_000

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.told: list[tuple[CircuitState, CircuitState]] = []
        self.circuit = CircuitBreakers(
            {"cooldown_ms": self.COOLDOWN_MS}, self.clock, lambda key, old, new, why: self.told.append((old, new))
        )
        self.circuit.check(KEY)
        self.elapsed_ms = 0
        self.opened: int | None = None
        self.probing = False
        self.forced = False
        self.run_of_failures = 0
        self.run_of_successes = 0
        self.permits_out = 0

    @initialize(threshold=st.integers(1, 3), probes=st.integers(1, 3), enough=st.integers(1, 3))
    def configure(self, threshold: int, probes: int, enough: int) -> None:
        self.threshold, self.probes, self.enough = threshold, probes, enough
        self.circuit.update_config(
            {"failure_threshold": threshold, "half_open_probe_count": probes, "success_to_close": enough}
        )

    def word(self) -> str:
        if self.opened is None:
            return "CLOSED"
        return "HALF_OPEN" if self.probing else "OPEN"

    def cooled_down(self) -> bool:
        return self.opened is not None and not self.forced and self.elapsed_ms - self.opened >= self.COOLDOWN_MS

    def trip(self) -> None:
        self.opened, self.probing, self.run_of_successes = self.elapsed_ms, False, 0

    def heal(self) -> None:
        self.opened, self.probing, self.forced = None, False, False
        self.run_of_failures = self.run_of_successes = 0

    def permit_back(self) -> None:
        self.permits_out = max(0, self.permits_out - 1)

    @rule(ms=st.sampled_from([1, 100, 2_500, 4_999, 5_000, 20_000]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms / 1000)
        self.elapsed_ms += ms

    @rule(seconds=st.sampled_from([-86_400, 86_400]))
    def wall_clock_jumps(self, seconds: int) -> None:
        self.clock.jump_wall(seconds)

    @rule()
    def check(self) -> None:
        verdict = self.circuit.check(KEY)
        if self.opened is None:
            expected = True
        else:
            self.probing = self.probing or self.cooled_down()
            expected = self.probing and self.permits_out < self.probes
            self.permits_out += expected
        assert verdict.allowed is expected
        assert verdict.state == self.word()
        assert verdict.reason == (None if expected else f"circuit open for endpoint {KEY}")

    @rule()
    def success(self) -> None:
        self.circuit.record_success(KEY)
        self.permit_back()
        if self.opened is None:
            self.run_of_failures = 0
        elif self.probing:
            self.run_of_successes += 1
            if self.run_of_successes == self.enough:
                self.heal()

    @rule()
    def failure(self) -> None:
        self.circuit.record_failure(KEY)
        self.permit_back()
        if self.opened is None or self.probing:
            self.run_of_failures += 1
            if self.probing or self.run_of_failures == self.threshold:
                self.trip()

    @rule()
    def release(self) -> None:
        self.circuit.release(KEY)
        self.permit_back()

    @rule()
    def reset(self) -> None:
        self.circuit.reset(KEY)
        self.heal()
        self.permits_out = 0

    @rule()
    def force_open(self) -> None:
        self.circuit.force(KEY, OPEN, "maintenance")
        self.trip()
        self.forced = True

    @rule()
    def force_closed(self) -> None:
        self.circuit.force(KEY, CLOSED, "done")
        self.heal()
        self.permits_out = 0

    @invariant()
    def the_view_agrees(self) -> None:
        view = self.circuit.states()[KEY]
        assert view.state == self.word()
        assert view.forced == self.forced
        assert view.consecutive_failures == self.run_of_failures
        assert view.half_open_successes == self.run_of_successes
        assert (view.opened_at is None) == (self.opened is None)

    @invariant()
    def waiting_is_zero_exactly_when_a_delivery_may_pass(self) -> None:
        may_probe = (self.probing or self.cooled_down()) and self.permits_out < self.probes
        assert (self.circuit.retry_in(KEY) == 0) == (self.opened is None or may_probe)

    @invariant()
    def transitions_form_one_path(self) -> None:
        here = CLOSED
        for old, new in self.told:
            assert old is here
            assert (old, new) != (CLOSED, HALF_OPEN)
            here = new
        assert here == self.word()


TestBreakerAgainstModel = BreakerAgainstModel.TestCase

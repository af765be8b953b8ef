"""A sender publishes so often within a window, and no oftener."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import RateLimitConfig
from relay_core.rules.rate_limit import RateLimiter, RateLimitVerdict, SenderUsage, check_rate_limit, resolve_limit
from relay_core.testing import FakeClock
from tests.kit.bus import A, B


def limiter(clock: FakeClock, **config: Any) -> RateLimiter:
    return RateLimiter(RateLimitConfig.model_validate({"window_secs": 10, "max_per_window": 3, **config}), clock)


def admit(limits: RateLimiter, sender: str) -> RateLimitVerdict:
    """Publish now, if that may be, as the pipeline does."""
    now = limits._clock.now_ms()
    verdict = limits.check(sender, now)
    assert limits.take(sender, now) is verdict.allowed
    return verdict


def admitted(limits: RateLimiter, sender: str, times: int) -> int:
    return sum(admit(limits, sender).allowed for _ in range(times))


@pytest.mark.parametrize(
    ("count", "verdict"),
    [
        pytest.param(0, RateLimitVerdict(True, None, 0, 3), id="first"),
        pytest.param(2, RateLimitVerdict(True, None, 2, 3), id="last-that-fits"),
        pytest.param(
            3, RateLimitVerdict(False, "rate limit exceeded: 3/3 messages in 10s window", 3, 3), id="at-the-limit"
        ),
        pytest.param(
            9, RateLimitVerdict(False, "rate limit exceeded: 9/3 messages in 10s window", 9, 3), id="beyond-the-limit"
        ),
    ],
)
def test_the_verdict_is_the_seeds(count: int, verdict: RateLimitVerdict) -> None:
    assert check_rate_limit(A, count, RateLimitConfig(window_secs=10, max_per_window=3)) == verdict


def test_a_disabled_limit_allows_any_count() -> None:
    verdict = check_rate_limit(A, 10_000, RateLimitConfig(enabled=False))
    assert (verdict.allowed, verdict.reason) == (True, None)


def test_the_check_uses_the_senders_own_limit() -> None:
    config = RateLimitConfig(per_sender_overrides={A: 1})
    assert not check_rate_limit(A, 1, config).allowed
    assert check_rate_limit(B, 1, config).allowed


@pytest.mark.parametrize(
    ("overrides", "sender", "limit"),
    [
        pytest.param({}, A, 100, id="no-overrides"),
        pytest.param({A: 5}, A, 5, id="the-sender-itself"),
        pytest.param({A: 5}, A + ".b", 5, id="below-the-prefix"),
        pytest.param({A: 5}, A + "b", 100, id="not-at-a-token-boundary"),
        pytest.param({A + ".": 5}, A, 5, id="trailing-dot-and-the-sender-itself"),
        pytest.param({A + ".": 5}, A + ".b", 5, id="trailing-dot-and-below"),
        pytest.param({A + ".": 5}, A + "b", 100, id="trailing-dot-is-no-wildcard"),
        pytest.param({A + ".b": 5}, A, 100, id="prefix-longer-than-the-sender"),
        pytest.param({"relay": 7, A: 5, "relay.agent": 6}, A, 5, id="longest-wins"),
        pytest.param({A: 5, "relay.agent": 6, "relay": 7}, B, 6, id="longest-that-covers-wins"),
        pytest.param({"relay": 7, "relay.agent.ab": 5}, A, 7, id="a-longer-name-is-not-a-longer-prefix"),
        pytest.param({"": 5, ".": 6}, A, 100, id="an-empty-prefix-covers-nobody"),
    ],
)
def test_the_longest_prefix_at_a_token_boundary_wins(overrides: dict[str, int], sender: str, limit: int) -> None:
    for order in (overrides, dict(reversed(overrides.items()))):
        assert resolve_limit(sender, RateLimitConfig(per_sender_overrides=order)) == limit


def test_admitting_counts_and_records_in_one_step(clock: FakeClock) -> None:
    limits = limiter(clock)
    verdicts = [admit(limits, A) for _ in range(4)]
    assert [(verdict.allowed, verdict.current_count) for verdict in verdicts] == [
        (True, 0),
        (True, 1),
        (True, 2),
        (False, 3),
    ]
    assert verdicts[-1].reason == "rate limit exceeded: 3/3 messages in 10s window"


def test_senders_do_not_share_a_window(clock: FakeClock) -> None:
    limits = limiter(clock)
    assert admitted(limits, A, 5) == 3
    assert admitted(limits, B, 5) == 3


def test_the_window_slides_by_the_publish(clock: FakeClock) -> None:
    limits = limiter(clock)
    admit(limits, A)
    clock.advance(4)
    assert admitted(limits, A, 5) == 2
    clock.advance(5.999)
    assert admitted(limits, A, 5) == 0
    clock.advance(0.001)
    assert admitted(limits, A, 5) == 1
    clock.advance(4)
    assert admitted(limits, A, 5) == 2


def test_refused_publishes_do_not_prolong_the_wait(clock: FakeClock) -> None:
    limits = limiter(clock)
    admitted(limits, A, 3)
    for _ in range(9):
        clock.advance(1)
        assert not admit(limits, A).allowed
    clock.advance(1)
    assert admit(limits, A).allowed


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 4_000)), max_size=60),
)
def test_no_window_ever_holds_more_than_the_limit_and_none_is_refused_below_it(
    limit: int, publishes: list[tuple[str, int]]
) -> None:
    clock = FakeClock()
    limits = limiter(clock, max_per_window=limit)
    log: list[tuple[str, int]] = []
    for sender, wait_ms in publishes:
        clock.advance(wait_ms / 1000)
        now = clock.now_ms()
        in_window = sum(1 for who, when in log if who == sender and when > now - 10_000)
        verdict = admit(limits, sender)
        assert (verdict.allowed, verdict.current_count) == (in_window < limit, in_window)
        if verdict.allowed:
            log.append((sender, now))


@pytest.mark.parametrize("back", [1, 9, 10, 11, 3_600, 10_000_000])
def test_a_wall_clock_that_jumps_back_locks_nobody_out_for_longer_than_a_window(back: int, clock: FakeClock) -> None:
    limits = limiter(clock)
    admitted(limits, A, 3)
    clock.jump_wall(-back)
    assert not admit(limits, A).allowed, "and gives no second helping"
    clock.advance(9.999)
    assert not admit(limits, A).allowed
    clock.advance(0.001)
    assert admit(limits, A).allowed


def test_publishes_before_and_after_a_jump_back_stay_in_order(clock: FakeClock) -> None:
    limits = limiter(clock)
    admit(limits, A)
    clock.advance(5)
    admit(limits, A)
    clock.jump_wall(-2)
    admit(limits, A)
    clock.advance(7)
    assert admitted(limits, A, 5) == 1, "only the first, 5 + 7 - 2 seconds old by the wall clock, has left"


def test_a_wall_clock_that_jumps_forward_frees_the_window(clock: FakeClock) -> None:
    limits = limiter(clock)
    admitted(limits, A, 3)
    clock.jump_wall(3_600)
    assert admitted(limits, A, 5) == 3


def test_while_disabled_nothing_is_refused_or_recorded(clock: FakeClock) -> None:
    limits = limiter(clock, enabled=False)
    assert admitted(limits, A, 50) == 50
    limits.warm([(A, clock.now_ms())])
    assert (limits.usage(), len(limits)) == ([], 0)


def test_a_restart_is_warmed_from_the_index_in_any_order(clock: FakeClock) -> None:
    now = clock.now_ms()
    limits = limiter(clock)
    limits.warm([(A, now - 1_000), (B, now - 10_000), (A, now - 8_000), (A, now - 11_000), (B, now - 9_999)])
    assert {usage.sender: usage.count for usage in limits.usage()} == {A: 2, B: 1}
    assert admitted(limits, A, 5) == 1
    clock.advance(2)
    assert admitted(limits, A, 5) == 1, "the oldest leaves first, however the entries came"


def test_warming_adds_to_what_was_admitted_meanwhile(clock: FakeClock) -> None:
    limits = limiter(clock)
    admit(limits, A)
    limits.warm([(A, clock.now_ms() - 9_000)])
    clock.advance(1)
    assert admitted(limits, A, 5) == 2


def test_warmed_entries_from_the_future_count_as_now(clock: FakeClock) -> None:
    limits = limiter(clock)
    limits.warm([(A, clock.now_ms() + 3_600_000)] * 3)
    assert not admit(limits, A).allowed
    clock.advance(10)
    assert admit(limits, A).allowed


def test_usage_lists_the_busiest_first_and_leaves_out_the_idle(clock: FakeClock) -> None:
    limits = limiter(clock, per_sender_overrides={B: 7})
    admit(limits, "relay.idle")
    clock.advance(10)
    admit(limits, A)
    clock.advance(4)
    admitted(limits, B, 2)
    assert limits.usage() == [
        SenderUsage(sender=B, count=2, limit=7, window_secs=10, resets_in_ms=10_000),
        SenderUsage(sender=A, count=1, limit=3, window_secs=10, resets_in_ms=6_000),
    ]


def test_usage_tells_exactly_when_there_is_room_again(clock: FakeClock) -> None:
    limits = limiter(clock)
    admitted(limits, A, 1)
    clock.advance(3)
    admitted(limits, A, 2)
    [usage] = limits.usage()
    clock.advance(usage.resets_in_ms / 1000 - 0.001)
    assert not admit(limits, A).allowed
    clock.advance(0.001)
    assert admit(limits, A).allowed


def test_idle_senders_are_forgotten_and_busy_ones_kept(clock: FakeClock) -> None:
    limits = limiter(clock)
    admit(limits, A)
    clock.advance(5)
    admitted(limits, B, 3)
    clock.advance(5)
    assert limits.forget_idle() == 1
    assert len(limits) == 1
    assert admitted(limits, B, 5) == 0


def test_a_new_configuration_applies_at_once_and_keeps_the_log(clock: FakeClock) -> None:
    limits = limiter(clock)
    admitted(limits, A, 3)
    limits.update_config(RateLimitConfig(window_secs=10, max_per_window=3, per_sender_overrides={A: 5}))
    assert admitted(limits, A, 5) == 2
    limits.update_config(RateLimitConfig(window_secs=10, max_per_window=2))
    verdict = admit(limits, A)
    assert (verdict.allowed, verdict.current_count, verdict.limit) == (False, 5, 2)
    limits.update_config(RateLimitConfig(window_secs=20, max_per_window=6))
    clock.advance(15)
    assert admitted(limits, A, 5) == 1


def test_verdicts_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        check_rate_limit(A, 0).allowed = False  # type: ignore[misc]

"""A mailbox refuses mail when it is full and warns before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.config import BackpressureConfig
from relay_core.messages.signals import SignalType
from relay_core.rules.backpressure import BackpressureVerdict, check_backpressure, pressure_signal

AT = "2026-02-24T12:00:00.000Z"
TEN = BackpressureConfig(max_mailbox_size=10)


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        pytest.param(0, BackpressureVerdict(True, None, 0, 0.0), id="empty"),
        pytest.param(5, BackpressureVerdict(True, None, 5, 0.5), id="half-full"),
        pytest.param(9, BackpressureVerdict(True, None, 9, 0.9), id="room-for-one"),
        pytest.param(10, BackpressureVerdict(False, "backpressure: mailbox full (10/10)", 10, 1.0), id="full"),
        pytest.param(99, BackpressureVerdict(False, "backpressure: mailbox full (99/10)", 99, 1.0), id="overfull"),
    ],
)
def test_the_verdict_is_the_seeds(size: int, verdict: BackpressureVerdict) -> None:
    assert check_backpressure(size, TEN) == verdict


def test_the_default_mailbox_holds_a_thousand() -> None:
    assert check_backpressure(999).allowed
    assert not check_backpressure(1000).allowed


@given(st.integers(0, 3_000), st.integers(1, 2_000))
def test_pressure_is_a_share_and_is_whole_exactly_when_mail_is_refused(size: int, most: int) -> None:
    verdict = check_backpressure(size, BackpressureConfig(max_mailbox_size=most))
    assert 0.0 <= verdict.pressure <= 1.0
    assert verdict.allowed == (size < most) == (verdict.pressure < 1.0)
    assert (verdict.reason is None) == verdict.allowed


def test_disabled_means_no_refusal_no_pressure_and_no_signal() -> None:
    off = BackpressureConfig(enabled=False, max_mailbox_size=1, pressure_warning_at=0)
    verdict = check_backpressure(50, off)
    assert verdict == BackpressureVerdict(True, None, 50, 0.0)
    assert pressure_signal(verdict, "relay.agent.a", off, AT) is None


@pytest.mark.parametrize(
    ("size", "state"), [(0, None), (7, None), (8, "warning"), (9, "warning"), (10, "critical"), (11, "critical")]
)
def test_the_sender_is_warned_from_the_warning_share_on(size: int, state: str | None) -> None:
    signal = pressure_signal(check_backpressure(size, TEN), "relay.agent.a", TEN, AT)
    assert (signal.state if signal else None) == state


def test_the_signal_says_how_full_which_mailbox_is() -> None:
    signal = pressure_signal(check_backpressure(9, TEN), "relay.agent.a", TEN, AT)
    assert signal is not None
    assert signal.type is SignalType.BACKPRESSURE
    assert signal.to_wire() == {
        "type": "backpressure",
        "state": "warning",
        "endpointSubject": "relay.agent.a",
        "timestamp": AT,
        "data": {"pressure": 0.9, "currentSize": 9, "maxMailboxSize": 10},
    }

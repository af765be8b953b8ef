from __future__ import annotations

import logging

import pytest

from relay_core.limited_log import EVERY_SECS, MOST_CAUSES, LimitedLog
from relay_core.testing import FakeClock

logger = logging.getLogger("relay_core.test_limited_log")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> LimitedLog:
    caplog.set_level(logging.INFO)
    return LimitedLog(logger, clock)


def test_a_cause_has_its_first_line_at_once_and_then_one_a_minute_with_the_count_of_the_others(
    log: LimitedLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        log.warning("a", "failed: %d", n)
    log.error("b", "another")
    assert caplog.messages == ["failed: 0", "another"]
    clock.advance(EVERY_SECS - 0.001)
    log.warning("a", "failed: %d", 5)
    assert len(caplog.messages) == 2
    clock.advance(0.001)
    log.warning("a", "failed: %d", 6)
    clock.advance(EVERY_SECS)
    log.info("a", "failed: %d", 7)
    assert caplog.messages[2:] == ["failed: 6 (5 more like it since the last such line)", "failed: 7"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "WARNING", "INFO"]


def test_causes_are_forgotten_when_there_are_too_many(log: LimitedLog, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(MOST_CAUSES + 1):
        log.warning(n, "cause %d", n)
    caplog.clear()
    log.warning(MOST_CAUSES, "the newest is known")
    log.warning(0, "the oldest is not")
    assert caplog.messages == ["the oldest is not"]


def test_the_cause_that_was_logged_longest_ago_is_forgotten_first(
    log: LimitedLog, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(MOST_CAUSES):
        log.warning(n, "cause %d", n)
    clock.advance(EVERY_SECS)
    log.warning(0, "again")  # the first that came, and the last that was logged
    log.warning("new", "one more")
    caplog.clear()
    log.warning(0, "is known")
    assert caplog.messages == []

"""Fixtures that every package's tests share; the guards and the serial tests' rules come as plugins."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from relay_core.testing import FakeClock

pytest_plugins = ["tests.guards", "tests.serial"]

# What ignores or blocks signals (nohup, &) has its children do so, too. The programs that the tests start take them as
# usual. With a handler instead of the default, pytest itself goes on as it was told to.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_SETMASK, [])

# No profile judges by time: a busy machine would fail the test.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, max_examples=50, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a fresh data directory that only its owner can enter."""
    path = tmp_path / "relay"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that moves only when the test says so."""
    from relay_core.testing import FakeClock

    return FakeClock()

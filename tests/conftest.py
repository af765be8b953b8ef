"""What every test run has: the plugins of `tests.kit`, usual signals, and profiles for Hypothesis."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.kit.fixtures", "tests.kit.guards", "tests.kit.serial"]

# A process that was started with signals ignored or blocked (nohup, &) passes that on to its children. The programs
# that tests start must take signals as usual. With a handler in place of SIG_IGN, pytest itself still ignores them.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_SETMASK, [])

# No profile has a deadline: a busy machine would fail the test.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, max_examples=50, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

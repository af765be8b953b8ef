"""Tools for tests of Relay, and of programs built on it.

`FakeClock` is a clock that the test advances. `check_adapter` checks that an adapter keeps the rules that the bus
relies on (adapter_compliance.py lists them).
"""

from relay_core.testing.adapter_compliance import ADAPTER_CHECKS, AdapterCase, ComplianceError, check_adapter
from relay_core.testing.fake_clock import FakeClock, FakeTimer

__all__ = ["ADAPTER_CHECKS", "AdapterCase", "ComplianceError", "FakeClock", "FakeTimer", "check_adapter"]

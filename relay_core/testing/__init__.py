"""Tools for tests of Relay, and of programs built on it.

`FakeClock` moves only when told to. `check_adapter` checks an adapter against the rules that the bus relies on, which
`adapter_compliance` lists. May import everything in `relay_core`; nothing else imports it.
"""

from relay_core.testing.adapter_compliance import ADAPTER_CHECKS, AdapterCase, ComplianceError, check_adapter
from relay_core.testing.fake_clock import FakeClock, FakeTimer

__all__ = ["ADAPTER_CHECKS", "AdapterCase", "ComplianceError", "FakeClock", "FakeTimer", "check_adapter"]

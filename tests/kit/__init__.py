"""The tests' shared tools, in one place. Tests import from here; nothing here imports a test.

- `fixtures`: the fixtures every test has: `data_dir`, `clock`, and `relay`, a bus that the marker `bus` configures.
- `bus`: subjects, configurations, and short ways to publish to a bus and look into it. `handlers`: handlers that
  collect messages, wait or fail. `adapters`: adapters for the tests of the seam.
- `waiting`: waits for a condition, never for time.
- `supervisor` runs a supervisor in the test's process, `daemon` in another, `cli` runs the command `relay`.
  `raw_client` speaks to the socket without manners; `terminal` is a pseudo-terminal.
- `servers`: the other ends of the adapters, and a proxy that cuts connections.
- `guards` and `serial` are pytest plugins: rules for every test, and which tests run side by side. `keeper` cleans up
  after a run; `installed` is the wheel in an empty environment.

This module and `keeper` import the standard library only: `python3 -m tests` uses them before anything is installed.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

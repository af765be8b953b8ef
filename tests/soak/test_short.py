"""A short round of the soak in each durability, so that the gate runs what `python3 -m tests soak` runs for hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.rig import Durability, Rig

CYCLES = 5


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_a_short_round_breaks_no_rule(tmp_path: Path, durability: Durability) -> None:
    outcome = await Rig(tmp_path, "gate 1", durability).run(CYCLES)
    assert outcome.violations == []
    assert outcome.faults.total() == CYCLES
    assert outcome.counts["acknowledged"] > 100
    assert outcome.counts["acks"] > 50

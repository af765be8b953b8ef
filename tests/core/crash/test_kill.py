"""SIGKILL, at any instant and after each step: what was acknowledged is served, once."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from tests.core.crash.child import STEPS
from tests.core.crash.ledger import Ledger, Nursery

DURABILITIES: tuple[Literal["os", "fsync"], ...] = ("os", "fsync")
KILLED_STEPS = [
    (step, when)
    for step in STEPS
    for when in (("before", "during", "after") if step in ("journal", "write") else ("before", "after"))
]
# Many checkpoints. Without dedupe ids: an outcome may leave with its segment before the index has it.
SMALL_SEGMENTS = {"segment_bytes": 16 * 1024, "dedupe": False}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@pytest.fixture
def ledger(data_dir: Path, tmp_path: Path, durability: Literal["os", "fsync"]) -> Ledger:
    return Ledger(data_dir, tmp_path / "handled.log", durability)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_process_that_nobody_kills_serves_everything(ledger: Ledger, nursery: Nursery) -> None:
    for _ in range(2):
        assert ledger.run(nursery, ledger.job()) == 0
        ledger.check(retry=random.Random(0))
    assert ledger.acknowledged == ledger.tried
    assert ledger.purged


@pytest.mark.parametrize("durability", DURABILITIES)
def test_killed_at_any_instant(ledger: Ledger, nursery: Nursery) -> None:
    chance = random.Random(20)
    for cycle in range(12):
        job = ledger.job(rounds=50, seed=cycle, **SMALL_SEGMENTS if cycle % 2 else {})
        status = ledger.run(nursery, job, kill_after=chance.randrange(300))
        assert status == signal.SIGKILL
        ledger.check(retry=chance)
    assert len(ledger.acknowledged) > 300


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("step", "when"), KILLED_STEPS)
def test_killed_at_a_step(ledger: Ledger, nursery: Nursery, step: str, when: str) -> None:
    if ledger.durability == "os" and step in ("sync", "forget"):
        pytest.skip("with os there is no such step")
    chance = random.Random(7)
    killed = 0
    for cycle, nth in enumerate((1, 2, 5)):
        job = ledger.job(rounds=8, step=step, when=when, nth=nth, seed=nth, **SMALL_SEGMENTS if cycle % 2 else {})
        status = ledger.run(nursery, job)
        killed += status == signal.SIGKILL
        ledger.check(retry=chance)
    assert killed >= 2

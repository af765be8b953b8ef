"""SIGKILL, at any instant and after each step: acknowledged messages are served, once."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from relay_core.core import RelayCore
from relay_core.journal.journal import Journal
from relay_core.messages.envelope import Envelope
from tests.core.crash.child import FLAKY, KEEP, LATE, STEPS, config, payload, sender
from tests.core.crash.ledger import Ledger, Nursery

DURABILITIES: tuple[Literal["os", "fsync"], ...] = ("os", "fsync")
KILLED_STEPS = [
    (step, when)
    for step in STEPS
    if step != "segment reused"
    for when in (("before", "during", "after") if STEPS[step].torn else ("before", "after"))
]
SMALL_SEGMENTS = {"segment_bytes": 16 * 1024}
"""Many checkpoints."""
REUSED_SEGMENTS = {**SMALL_SEGMENTS, "reuses": True}
TURNS: list[dict[str, object]] = [
    {"nth": 1, "count_from": "ready"},
    {"nth": 2, "count_from": "ready", "subjects": (FLAKY,)},
    {"nth": 2, "count_from": "ready", "subjects": (LATE,)},
    {"nth": 5, **SMALL_SEGMENTS},
]
"""The same step in the traffic, in replays of either kind, and in what is left of these or soon after."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


@pytest.fixture
def ledger(data_dir: Path, tmp_path: Path, durability: Literal["os", "fsync"]) -> Ledger:
    return Ledger(data_dir, tmp_path / "handled.log", durability)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_process_that_is_not_killed_serves_everything(ledger: Ledger, nursery: Nursery) -> None:
    for _ in range(2):
        assert ledger.run(nursery, ledger.job()) == 0
        ledger.check(retry=random.Random(0))
    assert ledger.acknowledged == ledger.tried
    assert ledger.purged


@pytest.mark.parametrize("durability", DURABILITIES)
def test_killed_at_any_instant(ledger: Ledger, nursery: Nursery) -> None:
    chance = random.Random(20)
    for cycle in range(12):
        job = ledger.job(rounds=50, seed=cycle, **({}, SMALL_SEGMENTS, REUSED_SEGMENTS)[cycle % 3])
        status = ledger.run(nursery, job, kill_after=chance.randrange(300))
        assert status == signal.SIGKILL
        ledger.check(retry=chance)
    assert len(ledger.acknowledged) > 300


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(("step", "when"), KILLED_STEPS)
def test_killed_at_a_step(ledger: Ledger, nursery: Nursery, step: str, when: str) -> None:
    if ledger.durability == "os" and step == "synced":
        pytest.skip("with os there is no such step")
    chance = random.Random(7)
    killed = 0
    for turn, wishes in enumerate(TURNS):
        job = ledger.job(rounds=8, step=step, when=when, seed=turn, **wishes)
        killed += ledger.run(nursery, job) == signal.SIGKILL
        ledger.check(retry=chance)
    assert killed >= 2, nursery.errors()


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_when_a_segment_is_reused(ledger: Ledger, nursery: Nursery, when: str) -> None:
    chance = random.Random(7)
    for nth in (1, 2, 4):
        job = ledger.job(rounds=50, step="segment reused", when=when, nth=nth, seed=nth, **REUSED_SEGMENTS)
        assert ledger.run(nursery, job) == signal.SIGKILL, nursery.errors()
        ledger.check(retry=chance)


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_retry_is_recognised_after_any_number_of_restarts(ledger: Ledger, nursery: Nursery) -> None:
    status = ledger.run(nursery, ledger.job(step="file made", when="after", nth=9, subjects=(KEEP,), operate=False))
    assert status == signal.SIGKILL
    for _ in range(2):
        ledger.check()
    ledger.check(retry=random.Random(1))


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_retry_after_a_kill_makes_no_second_dead_letter(ledger: Ledger, nursery: Nursery) -> None:
    status = ledger.run(
        nursery, ledger.job(step="dead letter made", when="after", nth=9, subjects=(LATE,), operate=False)
    )
    assert status == signal.SIGKILL
    ledger.check(retry=random.Random(1))


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_retry_of_a_publish_without_a_target_makes_no_second_dead_letter(
    data_dir: Path, durability: Literal["os", "fsync"]
) -> None:
    for _ in range(3):
        async with RelayCore(data_dir, config(durability)) as core:
            await core.publish(LATE, payload(1), sender=sender(1), dedupe_id="one")
            assert len(await core.dead_letters()) == 1


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("subject", [FLAKY, LATE], ids=["to a target", "to a subject"])
async def test_two_operators_who_replay_the_same_dead_letter_deliver_it_once(
    data_dir: Path, durability: Literal["os", "fsync"], subject: str
) -> None:
    handled: list[int] = []

    async def handle(envelope: Envelope) -> None:
        handled.append(envelope.replays)
        if not envelope.replays:
            raise RuntimeError("as arranged")

    async with RelayCore(data_dir, config(durability)) as core:
        if subject == FLAKY:
            await core.register_endpoint(subject)
            await core.subscribe(subject, handle)
        for number in range(20):
            await core.publish(subject, number, sender="s")
        await core.idle()
        await core.subscribe(LATE, handle)
        handled.clear()
        plans = [await core.plan_replay() for _ in range(3)]
        async with asyncio.TaskGroup() as group:
            for plan in plans:
                group.create_task(core.run_replay(plan.id))
        await core.idle()
        assert handled == [1] * 20
        assert await core.dead_letters() == []


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_an_outcome_stays_in_the_journal_until_the_index_has_it(
    data_dir: Path, tmp_path: Path, durability: Literal["os", "fsync"], monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Journal.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "segment_bytes", 500)

    async def publish(core: RelayCore) -> None:
        for number in range(30):
            await core.publish(KEEP, payload(number), sender="s", dedupe_id=f"d{number}")

    async with RelayCore(data_dir, config(durability)) as core:
        await core.register_endpoint(KEEP)
        await publish(core)
        shutil.copytree(data_dir, tmp_path / "killed", copy_function=_copy_if_there)
    async with RelayCore(tmp_path / "killed", config(durability)) as core:
        await publish(core)
        assert core.mailboxes()[0].depth == 30


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # a segment that a checkpoint has just dropped
        shutil.copy2(source, target)

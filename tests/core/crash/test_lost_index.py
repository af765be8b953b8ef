"""A lost index costs only time: retries, rate windows and budgets hold without it, and without its last rows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.messages.envelope import Envelope
from relay_core.testing import FakeClock
from tests.core.crash.story import CHAIN, HOPS_BEFORE, Durability, Told, begin, check, config, hold_index
from tests.kit import ROOT
from tests.kit.bus import SENDER, A, B, C

DURABILITIES: tuple[Durability, ...] = ("os", "fsync")


def lose_index(data_dir: Path) -> None:
    for path in data_dir.glob("index.db*"):
        path.unlink()


def kept(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "journal" / "kept").glob("*.log"))


class Teller:
    """The process that tells the first part, and is killed."""

    def __init__(self, data_dir: Path, durability: Durability) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.core.crash.story", str(data_dir), durability],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "open\n"

    def tell(self, *, held: bool = False) -> Told:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("hold the index\n" if held else "\n")
        self._process.stdin.flush()
        return Told(**json.loads(self._process.stdout.readline()))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL


@pytest.fixture
def teller(data_dir: Path, durability: Durability) -> Iterator[Teller]:
    found = Teller(data_dir, durability)
    yield found
    found._process.kill()
    found._process.communicate()


async def look(data_dir: Path, durability: Durability, told: Told) -> None:
    """Start, and see that nothing is forgotten."""
    async with RelayCore(data_dir, config(durability)) as core:
        await check(core, told)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_lost_while_stopped(data_dir: Path, durability: Durability) -> None:
    async with RelayCore(data_dir, config(durability)) as core:
        told = await begin(core)
    lose_index(data_dir)
    await look(data_dir, durability, told)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_damaged_while_stopped(data_dir: Path, durability: Durability) -> None:
    async with RelayCore(data_dir, config(durability)) as core:
        told = await begin(core)
    (data_dir / "index.db").write_bytes(b"not a database" * 1000)
    await look(data_dir, durability, told)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_killed_while_a_lost_index_was_being_restored(data_dir: Path, durability: Durability) -> None:
    async with RelayCore(data_dir, config(durability)) as core:
        told = await begin(core)
    lose_index(data_dir)
    async with RelayCore(data_dir, config(durability)):
        pass
    with closing(sqlite3.connect(data_dir / "index.db")) as db:  # as a kill before the first rows leaves it
        for table in ("publishes", "deliveries", "journal"):
            db.execute(f"DELETE FROM {table}")
        db.commit()
    await look(data_dir, durability, told)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_stopped_while_the_index_could_not_be_written(data_dir: Path, durability: Durability) -> None:
    async with RelayCore(data_dir, config(durability)) as core:
        await hold_index(core)
        told = await begin(core)
    await look(data_dir, durability, told)


@pytest.mark.may_block("it waits for the end of a process that it has killed")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("loss", ["nothing", "index"])
async def test_killed(data_dir: Path, durability: Durability, teller: Teller, loss: str) -> None:
    told = teller.tell()
    teller.kill()
    if loss == "index":
        lose_index(data_dir)
    await look(data_dir, durability, told)


@pytest.mark.may_block("it waits for the killed process, and looks into its index")
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_killed_before_the_index_had_written_anything(
    data_dir: Path, durability: Durability, teller: Teller
) -> None:
    told = teller.tell(held=True)
    teller.kill()
    with closing(sqlite3.connect(data_dir / "index.db")) as db:
        assert db.execute("SELECT count(*) FROM publishes").fetchone() == (0,)
    await look(data_dir, durability, told)


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_lost_while_it_runs_and_built_again(data_dir: Path, durability: Durability) -> None:
    async with RelayCore(data_dir, config(durability)) as core:
        told = await begin(core)
        await core.bus.index.flush()
        await core.bus.index.run(lambda db: db.executescript("DELETE FROM publishes; DELETE FROM deliveries;"))
        await core.rebuild_index()
        await check(core, told)
    await look_again(data_dir, durability, told)


async def look_again(data_dir: Path, durability: Durability, told: Told) -> None:
    """After a rebuild, a restart knows the same."""
    async with RelayCore(data_dir, config(durability)) as core:
        again = await core.publish("story.once", 1, sender="story.teller", dedupe_id="once")
        assert again.message_id == told.once


async def test_while_the_index_cannot_answer_a_parent_is_found_in_the_journal(data_dir: Path) -> None:
    async with RelayCore(data_dir, config("fsync")) as core:
        await hold_index(core)
        told = await begin(core)
        await core.bus.index.flush()  # tried, and known not to be written
        result = await core.publish(CHAIN[HOPS_BEFORE], 1, sender=CHAIN[HOPS_BEFORE - 1], parent_id=told.parent)
        (child,) = await core.inbox(CHAIN[HOPS_BEFORE])
        assert (child.id, child.budget.hop_count) == (result.message_id, HOPS_BEFORE + 1)
        assert child.budget.ancestor_chain == tuple(CHAIN[: HOPS_BEFORE + 1])


async def test_a_parent_is_found_although_the_index_catches_up_at_that_moment(data_dir: Path) -> None:
    """The row is missing when it is looked for, and written before the publish goes on."""
    async with RelayCore(data_dir, config("fsync")) as core:
        await hold_index(core)
        told = await begin(core)
        index = core.bus.index
        publish = core.publish(CHAIN[HOPS_BEFORE], 1, sender=CHAIN[HOPS_BEFORE - 1], parent_id=told.parent)
        async with asyncio.TaskGroup() as group:
            group.create_task(publish)
            await asyncio.sleep(0)  # it has asked the index, and goes on after the next step
            rows_may_come = index._thread.submit(lambda: index._run(lambda db: db.execute("PRAGMA query_only = 0")))
            index._thread.submit(index._retry_unsaved).result(30)  # and no step of the loop in between
            rows_may_come.result(0)
        (found,) = await core.inbox(CHAIN[HOPS_BEFORE])
        assert found.budget.hop_count == HOPS_BEFORE + 1


# What counts


async def test_the_same_publishes_count_with_and_without_the_index(data_dir: Path, clock: FakeClock) -> None:
    settings = RelayConfig.model_validate({"reliability": {"circuitBreaker": {"enabled": False}}})

    async def handle(envelope: Envelope) -> None:
        if not envelope.replays:
            raise ValueError("as arranged")

    async with RelayCore(data_dir, settings, clock) as core:
        for subject in (A, B, C):
            await core.register_endpoint(subject)
        await core.publish("relay.agent.*", "three copies", sender=SENDER)
        await core.publish(A, "retried", sender=SENDER, dedupe_id="x")
        await core.publish(A, "retried", sender=SENDER, dedupe_id="x")
        await core.publish("relay.nowhere", "no target", sender=SENDER)
        await core.publish(A, "too far", sender=SENDER, budget={"hop_count": 9})
        clock.advance(1)
        subscription = await core.subscribe(B, handle)
        await core.publish(B, "fails, and is replayed", sender="relay.agent.other", reply_to=C)
        await core.idle()
        await core.run_replay((await core.plan_replay()).id)
        await core.idle()
        letters = await core.dead_letters()
        await core.replays.edit(letters[-1].message_id, "edited", endpoint=letters[-1].endpoint_hash)
        await core.idle()
        await subscription.close()
        before = core.senders()
        assert [(usage.sender, usage.count) for usage in before] == [(SENDER, 4), ("relay.agent.other", 1)]
    async with RelayCore(data_dir, settings, clock) as core:
        assert core.senders() == before
    lose_index(data_dir)
    async with RelayCore(data_dir, settings, clock) as core:
        assert core.senders() == before


async def test_with_os_and_no_dedupe_id_what_still_waits_counts(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as core:
        await core.register_endpoint(A)
        for number in range(3):
            await core.publish(A, number, sender=SENDER)
        before = core.senders()
    lose_index(data_dir)
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as core:
        assert core.senders() == before


async def test_an_index_that_is_there_is_believed_and_old_segments_are_not_read(data_dir: Path) -> None:
    async with RelayCore(data_dir, config("fsync")) as core:
        told = await begin(core)
    assert kept(data_dir)
    with closing(sqlite3.connect(data_dir / "index.db")) as db:
        db.execute("DELETE FROM publishes")
        db.commit()
    async with RelayCore(data_dir, config("fsync")) as core:
        again = await core.publish("story.once", 1, sender="story.teller", dedupe_id="once")
        assert again.message_id != told.once


# How much is kept


async def publish_and_restart(data_dir: Path, settings: RelayConfig, times: int) -> list[str]:
    """Publish one message with a dedupe id in each of several runs; return the messages."""
    found = []
    for number in range(times):
        async with RelayCore(data_dir, settings) as core:
            await core.register_endpoint(A)
            result = await core.publish(A, "x" * 1000, sender=SENDER, dedupe_id=f"d{number}")
            found.append(result.message_id)
    return found


async def retried(data_dir: Path, settings: RelayConfig, times: int) -> list[str]:
    async with RelayCore(data_dir, settings) as core:
        return [
            (await core.publish(A, "x", sender=SENDER, dedupe_id=f"d{number}")).message_id for number in range(times)
        ]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_the_oldest_are_removed_beyond_the_configured_size(data_dir: Path, durability: Durability) -> None:
    settings = config(durability, journalBytes=4000)
    first = await publish_and_restart(data_dir, settings, 6)
    files = kept(data_dir)
    assert 0 < sum(path.stat().st_size for path in files) <= 4000
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (data_dir / "journal" / "kept").stat().st_mode & 0o777 == 0o700
    lose_index(data_dir)
    again = await retried(data_dir, settings, 6)
    known = [result == other for result, other in zip(first, again, strict=True)]
    assert known[-1]
    assert not known[0]
    assert known == sorted(known)


async def test_none_are_kept_if_the_size_is_zero(data_dir: Path) -> None:
    await publish_and_restart(data_dir, config("fsync", journalBytes=0), 2)
    assert kept(data_dir) == []


async def test_the_upkeep_removes_what_is_older_than_traces(data_dir: Path) -> None:
    settings = config("fsync")
    await publish_and_restart(data_dir, settings, 3)
    old, *newer = kept(data_dir)
    assert newer
    async with RelayCore(data_dir, settings) as core:
        os.utime(old, (0, 0))
        await core.maintenance.forget_traces()
        assert old not in kept(data_dir)
        assert set(newer) <= set(kept(data_dir))


async def test_a_damaged_segment_costs_only_its_rest(data_dir: Path) -> None:
    settings = config("fsync")
    async with RelayCore(data_dir, settings) as core:
        await core.register_endpoint(A)
        first = [(await core.publish(A, 1, sender=SENDER, dedupe_id=f"d{number}")).message_id for number in range(3)]
    async with RelayCore(data_dir, settings) as core:
        first.append((await core.publish(A, 1, sender=SENDER, dedupe_id="d3")).message_id)
    damaged = next(path for path in kept(data_dir) if first[1].encode() in path.read_bytes())
    damaged.write_bytes(damaged.read_bytes().replace(first[1].encode(), b"#" * 26))
    lose_index(data_dir)
    again = await retried(data_dir, settings, 4)
    assert [result == other for result, other in zip(first, again, strict=True)] == [True, False, False, True]


async def test_a_segment_that_cannot_be_read_keeps_nothing_from_starting(data_dir: Path) -> None:
    settings = config("fsync")
    first = await publish_and_restart(data_dir, settings, 1)
    (data_dir / "journal" / "kept" / "0000000000000000.log").mkdir()
    lose_index(data_dir)
    assert await retried(data_dir, settings, 1) == first


async def test_forgotten_messages_are_not_brought_back(data_dir: Path, clock: FakeClock) -> None:
    settings = config("fsync", traceMs=3_600_000)
    async with RelayCore(data_dir, settings, clock) as core:
        await core.register_endpoint(A)
        result = await core.publish(A, 1, sender=SENDER)
        for envelope in await core.claim(A):
            await core.complete(A, envelope.id)
    clock.advance(90_000)
    lose_index(data_dir)
    async with RelayCore(data_dir, settings, clock) as core:
        assert await core.trace(result.message_id) == []
        await core.rebuild_index()
        assert await core.trace(result.message_id) == []

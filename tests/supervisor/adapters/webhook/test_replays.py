"""The memory of ids: across restarts and kills, for the time a signature is good, and never without end."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_core.messages.ids import UlidFactory
from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook.replays import GENERATION_SECS, Replays

MESSAGE = UlidFactory(FakeClock())()


def count_lines(directory: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in directory.iterdir())


async def test_what_was_taken_is_known_until_no_signature_of_it_is_good(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as replays:
        clock.advance(GENERATION_SECS - 1)
        replays.record(MESSAGE, "a")
        assert replays.find("a") == MESSAGE
        assert replays.find("b") is None
        clock.advance(GENERATION_SECS)
        assert replays.find("a") == MESSAGE
        clock.advance(GENERATION_SECS)
        assert replays.find("a") is None
        assert len(replays) == 0


async def test_it_is_known_after_a_restart_from_either_generation(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as replays:
        replays.record(MESSAGE, "older")
        clock.advance(GENERATION_SECS - 10)
        replays.record(MESSAGE, "old")
        clock.advance(10)
        replays.record(MESSAGE, "young")
    async with Replays(tmp_path, clock) as replays:
        assert replays.find("old") == MESSAGE
        assert replays.find("young") == MESSAGE
    clock.advance(GENERATION_SECS - 5)
    async with Replays(tmp_path, clock) as replays:
        assert replays.find("young") == MESSAGE
        assert len(replays) == 1, "restarts do not keep an id for ever"


async def test_it_is_on_disk_as_soon_as_it_is_recorded(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as killed:
        killed.record(MESSAGE, "a")
        async with Replays(tmp_path, clock) as replays:
            assert replays.find("a") == MESSAGE


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_clock_that_jumps_forgets_nothing(tmp_path: Path, clock: FakeClock, jump: float) -> None:
    async with Replays(tmp_path, clock) as replays:
        replays.record(MESSAGE, "a")
        clock.jump_wall(jump)
        assert replays.find("a") == MESSAGE


@settings(max_examples=25)
@given(cut=st.integers(0, 200), noise=st.binary(max_size=20))
def test_a_line_that_was_cut_short_spoils_no_other(cut: int, noise: bytes) -> None:
    import asyncio
    from tempfile import TemporaryDirectory

    async def check(path: Path) -> None:
        clock = FakeClock()
        async with Replays(path, clock) as replays:
            replays.record(MESSAGE, "a")
        file = path / "ids-young.log"
        whole = file.read_bytes()
        file.write_bytes(whole[: min(cut, len(whole))] + noise.replace(b"\n", b""))
        async with Replays(path, clock) as replays:
            replays.record(MESSAGE, "b")
        async with Replays(path, clock) as replays:
            assert replays.find("b") == MESSAGE

    with TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory)))


async def test_too_many_are_put_off_rather_than_forgotten(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock, limit=2) as replays:
        replays.record(MESSAGE, "a")
        assert not replays.is_full()
        replays.record(MESSAGE, "b")
        assert replays.is_full()
        clock.advance(GENERATION_SECS)
        assert not replays.is_full()
        assert replays.find("a") == MESSAGE


async def test_the_files_do_not_grow_without_end(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as replays:
        for turn in range(20):
            for number in range(10):
                replays.record(MESSAGE, f"{turn}-{number}")
            clock.advance(GENERATION_SECS)
        replays.find("x")
        assert len(replays) <= 20
    assert count_lines(tmp_path) <= 20


async def test_a_disk_that_refuses_costs_only_what_a_restart_would_know(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as replays:
        os.rename(tmp_path, tmp_path.with_name("gone"))
        assert isinstance(replays.record(MESSAGE, "a"), OSError)
        assert replays.find("a") == MESSAGE


async def test_a_line_of_which_the_disk_takes_only_a_part_is_an_error_and_spoils_no_other(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with Replays(tmp_path, clock) as replays:
        replays.record(MESSAGE, "a")
        size = (tmp_path / "ids-young.log").stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            problem = replays.record(MESSAGE, "b")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert isinstance(problem, OSError)
        assert (tmp_path / "ids-young.log").stat().st_size == size + 10
        assert replays.record(MESSAGE, "c") is None
    async with Replays(tmp_path, clock) as replays:
        assert [replays.find(id) for id in "abc"] == [MESSAGE, None, MESSAGE]


async def test_all_ids_of_a_message_are_known(tmp_path: Path, clock: FakeClock) -> None:
    async with Replays(tmp_path, clock) as replays:
        replays.record(MESSAGE, "a", "b")
    async with Replays(tmp_path, clock) as replays:
        assert replays.find("a") == replays.find("b") == MESSAGE

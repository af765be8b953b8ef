"""Secret rotation: the previous secret works for 24 hours after the change, whatever the clock does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from relay_core.tasks import Tasks
from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook.rotation import Rotation
from tests.kit.waiting import until

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
HOUR = 3600.0


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secret.json"


async def test_the_previous_secret_ends_24_hours_after_the_change(path: Path, clock: FakeClock) -> None:
    assert (await Rotation.open(path, A, None, clock)).keys() == (A,)
    clock.advance(100 * HOUR)
    rotation = await Rotation.open(path, B, A, clock)
    assert rotation.keys() == (B, A)
    clock.advance(24 * HOUR - 1)
    assert rotation.keys() == (B, A)
    clock.advance(1)
    assert rotation.keys() == (B,)


async def test_the_time_runs_while_nothing_runs(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, None, clock)
    rotation = await Rotation.open(path, B, A, clock)
    clock.advance(10 * HOUR)
    await rotation.save()
    clock.advance(13 * HOUR)
    rotation = await Rotation.open(path, B, A, clock)
    assert rotation.keys() == (B, A)
    clock.advance(2 * HOUR)
    assert rotation.keys() == (B,)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B,), "nor does it come back"


async def test_a_previous_secret_that_is_added_late_works_no_more(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, B, None, clock)
    clock.advance(25 * HOUR)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B,)


async def test_each_change_begins_24_hours_of_its_own(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, None, clock)
    await Rotation.open(path, B, A, clock)
    clock.advance(23 * HOUR)
    rotation = await Rotation.open(path, C, B, clock)
    clock.advance(23 * HOUR)
    assert rotation.keys() == (C, B)


async def keep(rotation: Rotation) -> None:
    await rotation.keep(logging.getLogger("hook"), "inbound")


async def test_a_secret_whose_day_is_over_does_not_come_back_with_the_next_change(
    path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    await Rotation.open(path, A, None, clock)
    await Rotation.open(path, B, A, clock)
    clock.advance(25 * HOUR)
    rotation = await Rotation.open(path, C, A, clock)
    assert rotation.keys() == (C,)
    await keep(rotation)
    assert "inbound: previousSecret is not the secret that was in use before this one" in caplog.text
    assert (await Rotation.open(path, C, A, clock)).keys() == (C,), "nor with a restart"
    assert (await Rotation.open(path, C, B, clock)).keys() == (C, B), "the right one has its day"


async def test_nor_does_it_come_back_in_two_steps(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, None, clock)
    await Rotation.open(path, B, A, clock)
    clock.advance(25 * HOUR)
    await Rotation.open(path, C, None, clock)
    assert (await Rotation.open(path, C, A, clock)).keys() == (C,)


async def test_a_secret_that_never_was_in_use_is_no_previous_one(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, None, clock)
    assert (await Rotation.open(path, B, C, clock)).keys() == (B,)


async def test_at_the_first_start_any_other_is_taken_for_the_previous_one(path: Path, clock: FakeClock) -> None:
    assert (await Rotation.open(path, B, C, clock)).keys() == (B, C)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B, A), "a slip can be mended"
    clock.advance(24 * HOUR)
    assert (await Rotation.open(path, B, C, clock)).keys() == (B,)


async def test_a_change_can_be_taken_back(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, None, clock)
    await Rotation.open(path, B, A, clock)
    assert (await Rotation.open(path, A, B, clock)).keys() == (A, B)


async def test_a_clock_that_is_put_back_does_not_prolong_it_while_it_runs(path: Path, clock: FakeClock) -> None:
    rotation = await Rotation.open(path, B, A, clock)
    clock.advance(12 * HOUR)
    clock.jump_wall(-1000 * HOUR)
    clock.advance(12 * HOUR)
    assert rotation.keys() == (B,)


async def test_a_clock_that_is_put_back_at_every_restart_does_not_prolong_it_for_ever(
    path: Path, clock: FakeClock
) -> None:
    worked = 0
    for _ in range(10):
        rotation = await Rotation.open(path, B, A, clock)
        for _ in range(6):
            clock.advance(HOUR)
            worked += len(rotation.keys()) > 1
        await rotation.save()
        clock.jump_wall(-6 * HOUR)
    assert worked == 23, "of 60 hours"


async def test_it_is_written_down_every_hour_and_its_end_is_said(
    path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    rotation = await Rotation.open(path, B, A, clock)
    tasks = Tasks()
    tasks.start(rotation.keep(logging.getLogger("hook"), "inbound"), name="keep")
    written = set()

    def has_ended() -> bool:
        clock.advance(600)
        written.add(read(path))
        return not len(tasks)

    await until(has_ended)
    assert len(written) > 3
    assert "remove previousSecret" in caplog.text
    clock.jump_wall(-500 * HOUR)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B,)


async def test_the_end_is_written_down_even_if_it_came_between_two_hours(path: Path, clock: FakeClock) -> None:
    rotation = await Rotation.open(path, B, A, clock)
    clock.advance(24 * HOUR)
    await rotation.keep(logging.getLogger("hook"), "inbound")
    clock.jump_wall(-500 * HOUR)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B,)


async def test_neither_secret_is_on_disk(path: Path, clock: FakeClock) -> None:
    await Rotation.open(path, A, B, clock)
    written = read(path)
    for key in (A, B):
        assert key not in written
        assert key.hex().encode() not in written
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"salt": "zz"}', b'{"salt": 1, "fingerprint": 2}'])
async def test_a_damaged_record_is_like_none(path: Path, clock: FakeClock, damage: bytes) -> None:
    write(path, damage)
    rotation = await Rotation.open(path, B, A, clock)
    assert rotation.keys() == (B, A)
    clock.advance(24 * HOUR)
    assert rotation.keys() == (B,)


async def test_an_adapter_that_was_replaced_leaves_the_record_alone(path: Path, clock: FakeClock) -> None:
    old = await Rotation.open(path, A, C, clock)
    await Rotation.open(path, B, A, clock)
    await old.save()
    clock.advance(24 * HOUR)
    assert (await Rotation.open(path, B, A, clock)).keys() == (B,)

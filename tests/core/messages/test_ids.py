"""Ids only ever grow: within a millisecond, over clock jumps, over threads and over restarts."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from relay_core.messages.ids import UlidFactory, is_ulid, ulid_ms
from relay_core.testing import FakeClock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("01ARZ3NDEKTSV4RRFFQ69G5FAV", True, id="canonical"),
        pytest.param("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", True, id="largest"),
        pytest.param("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", False, id="beyond-128-bits"),
        pytest.param("01arz3ndektsv4rrffq69g5fav", False, id="lower-case"),
        pytest.param("01ARZ3NDEKTSV4RRFFQ69G5FA", False, id="short"),
        pytest.param("01ARZ3NDEKTSV4RRFFQ69G5FAVX", False, id="long"),
        pytest.param("01ARZ3NDEKTSV4RRFFQ69G5FAI", False, id="letter-outside-base32"),
        pytest.param("01ARZ3NDEKTSV4RRFFQ69G5FAV\n", False, id="newline"),
        pytest.param("../../etc/passwd", False, id="path"),
    ],
)
def test_is_ulid(text: str, expected: bool) -> None:
    assert is_ulid(text) is expected


def test_an_id_is_a_ulid_of_its_millisecond(clock: FakeClock) -> None:
    made = UlidFactory(clock)()
    assert is_ulid(made)
    assert str(ULID.from_str(made)) == made
    assert ulid_ms(made) == clock.now_ms()


def test_two_factories_do_not_give_the_same_id(clock: FakeClock) -> None:
    assert UlidFactory(clock)() != UlidFactory(clock)()


@given(st.lists(st.integers(-5_000, 5_000), max_size=60))
def test_ids_grow_however_the_wall_clock_jumps(jumps_ms: list[int]) -> None:
    clock = FakeClock()
    factory = UlidFactory(clock)
    ids = [factory()]
    for jump in jumps_ms:
        clock.jump_wall(jump / 1000)
        ids.append(factory())
        assert ulid_ms(ids[-1]) >= clock.now_ms()
    assert ids == sorted(set(ids))


def test_ids_grow_beyond_a_full_count_within_one_millisecond(clock: FakeClock) -> None:
    factory = UlidFactory(clock)
    first = factory()
    factory._count = (1 << 20) - 3
    ids = [first, *(factory() for _ in range(5))]
    assert ids == sorted(set(ids))
    assert [ulid_ms(made) - clock.now_ms() for made in ids] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("ahead_ms", [-10_000, 0, 1, 3_600_000])
def test_a_restart_seeded_with_the_newest_id_stays_above_it(ahead_ms: int, clock: FakeClock) -> None:
    newest = str(ULID.from_timestamp(clock.now_ms() + ahead_ms))[:10] + "Z" * 16
    factory = UlidFactory(clock)
    factory.seed(newest)
    ids = [factory() for _ in range(3)]
    assert newest < ids[0] < ids[1] < ids[2]


def test_seeding_never_lowers_a_running_factory(clock: FakeClock) -> None:
    factory = UlidFactory(clock)
    before = factory()
    factory.seed(str(ULID.from_timestamp(clock.now_ms() - 1000)))
    assert factory() > before


def test_threads_share_one_factory(clock: FakeClock) -> None:
    factory = UlidFactory(clock)
    made: list[list[str]] = [[] for _ in range(4)]

    def work(ids: list[str]) -> None:
        ids.extend(factory() for _ in range(2_000))

    threads = [threading.Thread(target=work, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == sorted(ids) for ids in made)
    assert len({made_id for ids in made for made_id in ids}) == 8_000

from __future__ import annotations

import random

from tests.power.cut import BLOCK, states
from tests.power.disk import Entry, Flush, Mark, Write

BLANK = bytes(4 * BLOCK)


def block(number: int, letter: bytes) -> Write:
    return Write(number * BLOCK, letter * BLOCK)


def letters(content: bytes) -> str:
    return "".join(chr(byte) if byte else "." for byte in content[::BLOCK])


def all_states(log: list[Entry], point: int) -> set[str]:
    chance = random.Random(1)
    return {letters(state) for _ in range(300) for state in states(BLANK, log, [point], chance)}


def test_flushed_writes_survive() -> None:
    log: list[Entry] = [block(0, b"a"), block(1, b"b"), Flush(), Mark("ack 1")]
    assert all_states(log, 3) == {"ab.."}


def test_writes_that_are_not_flushed_survive_in_any_combination() -> None:
    log: list[Entry] = [block(0, b"a"), Flush(), block(0, b"b"), block(1, b"c"), Flush()]
    assert all_states(log, 4) == {"a...", "b...", "ac..", "bc.."}


def test_a_long_write_may_be_torn_between_blocks() -> None:
    log: list[Entry] = [Write(BLOCK, b"a" * 2 * BLOCK), Flush()]
    assert all_states(log, 1) == {"....", ".a..", "..a.", ".aa."}


def test_a_write_after_the_cut_is_not_there() -> None:
    log: list[Entry] = [block(0, b"a"), Flush(), block(1, b"b"), Flush()]
    assert all_states(log, 2) == {"a..."}


def test_each_point_has_its_state() -> None:
    log: list[Entry] = [block(0, b"a"), Flush(), block(1, b"b"), Flush(), Mark("end")]
    assert [letters(state) for state in states(BLANK, log, [2, 4], random.Random(1))] == ["a...", "ab.."]

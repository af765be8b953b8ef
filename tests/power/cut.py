"""The states that a power cut can leave.

1. Every write before the last flush is on the disk.
2. Of the writes after it each block is there or not, in any combination: a drive writes its cache back in any order. A
   block of 4 KiB is whole, as drives promise; ext4's own superblock would not survive less.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from tests.power.disk import Entry, Flush, Write

BLOCK = 4096


def states(content: bytes, log: Sequence[Entry], points: Collection[int], chance: random.Random) -> Iterator[bytes]:
    """Yield, for each point in rising order, a content of the disk if the power fails before that entry of the log."""
    durable = bytearray(content)
    cache: list[Write] = []
    for position, entry in enumerate(log):
        if position in points:
            yield _lose(durable, cache, chance)
        if isinstance(entry, Write):
            cache.append(entry)
        elif isinstance(entry, Flush):
            for write in cache:
                _put(durable, write.offset, write.data)
            cache.clear()


def _lose(durable: bytearray, cache: list[Write], chance: random.Random) -> bytes:
    share = chance.choice((0.0, 0.1, 0.5, 0.9))
    state = bytearray(durable)
    for write in cache:
        for start in range(0, len(write.data), BLOCK):
            if chance.random() < share:
                _put(state, write.offset + start, write.data[start : start + BLOCK])
    return bytes(state)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    content[offset : offset + len(data)] = data

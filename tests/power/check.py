"""What must be there after a power cut: every message whose publish was acknowledged, unless a handler had it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from tests.power.disk import Entry, Mark
from tests.power.publisher import BOTH, DONE, KEEP, payload, subject


class TargetCopy(NamedTuple):
    """A number in one mailbox, or in none."""

    number: int
    subject: str


def stated(log: Sequence[Entry], word: str) -> set[str]:
    """Return what the marks that begin with a word name."""
    marks = [entry.text.split() for entry in log if isinstance(entry, Mark)]
    return {name for first, *names in marks if first == word for name in names}


def wanted(log: Sequence[Entry]) -> set[TargetCopy]:
    """Return the copies of acknowledged numbers that no handler has had."""
    copies = set()
    for number in map(int, stated(log, "ack")):
        targets = (KEEP, DONE) if subject(number) == BOTH else (subject(number),)
        copies |= {TargetCopy(number, target) for target in targets}
    return copies - {TargetCopy(int(number), DONE) for number in stated(log, "handled")}


def unnamed_segments(log: Sequence[Entry]) -> set[str]:
    """Return the journal segments that no sync of their directory covers: some file systems would lose their names."""
    return stated(log, "created") - stated(log, "named")


def find(data_dir: Path) -> set[TargetCopy]:
    """Start a bus and return the copies that wait or are dead letters; one that is not whole does not count."""
    return asyncio.run(_find(data_dir))


async def _find(data_dir: Path) -> set[TargetCopy]:
    async with RelayCore(data_dir, RelayConfig(durability="fsync")) as core:
        envelopes = [letter.envelope for letter in await core.dead_letters() if letter.envelope is not None]
        for endpoint in core.endpoints():
            envelopes += await core.inbox(endpoint.subject, limit=100_000)
    return {
        TargetCopy(number, envelope.subject)
        for envelope in envelopes
        if envelope.payload == payload(number := envelope.payload["n"])
    }

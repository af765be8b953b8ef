"""A story whose rules outlive the process: a publish that will be retried, a chain of messages, a sender at its limit.

Run as ``python -m tests.core.crash.story DIRECTORY DURABILITY`` it says ``open``, waits for a line, tells the first
part (with an index that cannot be written, if the line says ``hold the index``) and says what came of it as JSON. Then
it waits for another line, or to be killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from tests.core.crash.child import say

Durability = Literal["os", "fsync"]

ONCE = "story.once"
BUSY = "story.busy"
LIMIT = 5
MAX_HOPS = 5
HOPS_BEFORE = 3
CHAIN = [f"story.chain.{number}" for number in range(MAX_HOPS + 3)]


@dataclass
class Told:
    """What the first part came to."""

    once: str
    """The message that will be published again, with the same dedupe id."""
    parent: str
    """The last message of the chain so far."""


def config(durability: Durability, **retention: int) -> RelayConfig:
    """Return a configuration with a small limit and a window that no test outlasts."""
    rate = {"windowSecs": 86_400, "perSenderOverrides": {BUSY: LIMIT}}
    return RelayConfig.model_validate(
        {
            "durability": durability,
            "reliability": {"rateLimit": rate},
            "budget": {"maxHops": MAX_HOPS},
            "retention": retention,
        }
    )


def _dedupe(core: RelayCore, name: str) -> str | None:
    # With os the journal has only publishes with a dedupe id, and only those are promised.
    return name if core.bus.durability == "os" else None


async def begin(core: RelayCore) -> Told:
    """Tell the first part: every message in it is handled, so that no file is left."""
    for subject in (ONCE, *CHAIN):
        await core.register_endpoint(subject)
    once = await core.publish(ONCE, 1, sender="story.teller", dedupe_id="once")
    await _finish(core, ONCE)
    for number in range(LIMIT):
        await core.publish(ONCE, number, sender=BUSY, dedupe_id=_dedupe(core, f"busy {number}"))
        await _finish(core, ONCE)
    parent: str | None = None
    sender = "story.teller"
    for number, subject in enumerate(CHAIN[:HOPS_BEFORE]):
        result = await core.publish(
            subject, number, sender=sender, parent_id=parent, dedupe_id=_dedupe(core, f"chain {number}")
        )
        assert result.delivered_to == 1
        if parent is not None:
            await core.complete(sender, parent)  # held until now: its budget needs no index
        await core.claim(subject)
        parent, sender = result.message_id, subject
    assert parent is not None
    await core.complete(sender, parent)
    return Told(once.message_id, parent)


async def check(core: RelayCore, told: Told) -> None:
    """Tell the rest: nothing of the first part is forgotten."""
    again = await core.publish(ONCE, 1, sender="story.teller", dedupe_id="once")
    assert again.message_id == told.once, "the retry was published again"
    assert await core.inbox(ONCE) == []
    refused = await core.publish(ONCE, 1, sender=BUSY)
    assert [rejection.reason for rejection in refused.rejected or ()] == ["rate_limited"], (
        "the rate window is forgotten"
    )
    hops, parent, sender = HOPS_BEFORE, told.parent, CHAIN[HOPS_BEFORE - 1]
    for subject in CHAIN[HOPS_BEFORE:]:
        result = await core.publish(subject, 1, sender=sender, parent_id=parent)
        if not result.delivered_to:
            break
        hops += 1
        await _finish(core, subject)
        parent, sender = result.message_id, subject
    assert hops == MAX_HOPS, "the chain went further than its budget"
    traced = (await core.trace(told.parent))[0].trace_id
    assert traced != told.parent, "the conversation has lost its beginning"


async def hold_index(core: RelayCore) -> None:
    """Keep the index from writing anything: no other process can lock it while it is open."""
    await core.bus.index.run(lambda db: db.execute("PRAGMA query_only = 1"))


async def _finish(core: RelayCore, subject: str) -> None:
    for envelope in await core.claim(subject):
        await core.complete(subject, envelope.id)


async def main(directory: str, durability: Durability) -> None:
    """Be the process that is killed."""
    async with RelayCore(directory, config(durability)) as core:
        say("open")
        if await asyncio.to_thread(sys.stdin.readline) == "hold the index\n":
            await hold_index(core)
        say(json.dumps(asdict(await begin(core))))
        await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], "os" if sys.argv[2] == "os" else "fsync"))

"""A process that publishes while its disk is filled and emptied: `python -m tests.core.crash.filling ROOT DURABILITY`.

A process, not a task of the test: what a full disk must not do is end it by a signal. On stdout, one line per fact:
``ack number deliveredTo rejected`` or ``refused number code``, and ``end``. Then it kills itself.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

from relay_core.core import RelayCore
from relay_core.errors import StorageError
from tests.core.crash.child import config, die, say
from tests.core.crash.small_disk import Disk

SUBJECTS = ("a.b", "a.c")
FAN_OUT = "a.*"
UNHEARD = "n.o"
LEFT = (0, 700, 1500, 2600, 4096, 9000, 20_000, 70_000)
"""Bytes that each filling leaves."""


def subject(number: int) -> str:
    """Return where a number is published to."""
    return (*SUBJECTS, FAN_OUT, UNHEARD)[number % 4]


def payload(number: int) -> dict[str, Any]:
    """Return what is published."""
    return {"n": number, "x": "x" * (number * 397 % 5000)}


async def publish(core: RelayCore, number: int) -> str:
    """Publish a number with its dedupe id, and return the outcome."""
    try:
        result = await core.publish(subject(number), payload(number), sender="s", dedupe_id=f"d{number}")
    except StorageError as error:
        return f"refused {number} {error.code}"
    return (
        f"ack {number} {result.delivered_to} {','.join(rejection.reason for rejection in result.rejected or ()) or '-'}"
    )


async def work(disk: Disk, durability: str) -> None:
    """Publish, with a disk that is nearly full, then full, then has room again."""
    async with RelayCore(disk.data_dir, config(cast(Any, durability))) as core:
        for subject in SUBJECTS:
            await core.register_endpoint(subject)
        say(await publish(core, 3))  # the mailbox of messages without a target
        number = 100
        for leave in LEFT:
            disk.fill(leave=leave)
            for _ in range(24):
                say(await publish(core, number))
                number += 1
            await core.bus.index.flush()
            if leave != LEFT[-1]:
                disk.free()
                say(await publish(core, number))
                number += 1
        say("end")
        die()


if __name__ == "__main__":
    asyncio.run(work(Disk(Path(sys.argv[1])), sys.argv[2]))

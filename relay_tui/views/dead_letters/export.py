"""Exporting frozen dead letters to a file, as JSON lines.

1. The file is its owner's alone, and appears under its name only when it is whole.
2. A file that is there already is not written over, unless somebody has said so.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from relay_core.client import RelayClient
from relay_core.clock import Clock
from relay_tui.words import date_time

_TOGETHER = 500


def default_path(clock: Clock) -> str:
    """Return a name for the file, in the directory that the dashboard was started in."""
    stamp = date_time(clock.now_ms()).replace(" ", "-").replace(":", "")
    return f"dead-letters-{stamp}.jsonl"


async def export_plan(client: RelayClient, plan_id: str, path: Path, told: Callable[[int], None]) -> int:
    """Write what a plan has frozen to a file; return how many there were.

    Raises:
        OSError: if it cannot be written; nothing is left behind then.
    """
    handle, name = await asyncio.to_thread(tempfile.mkstemp, prefix=f".{path.name}.", dir=path.parent)
    count = 0
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            batch: list[str] = []
            async for one in client.export_dead_letters(plan_id=plan_id):
                batch.append(one + "\n")
                if len(batch) == _TOGETHER:
                    await asyncio.to_thread(file.writelines, batch)
                    count += len(batch)
                    told(count)
                    batch = []
            await asyncio.to_thread(file.writelines, batch)
            count += len(batch)
        await asyncio.to_thread(os.replace, name, path)
    except BaseException:
        _remove(name)
        raise
    return count


def _remove(name: str) -> None:
    Path(name).unlink(missing_ok=True)


def chosen_path(text: str) -> tuple[Path, bool]:
    """Return the file that somebody has typed, and whether it is there."""
    path = Path(text).expanduser().absolute()
    return path, path.exists()

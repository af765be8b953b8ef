"""Exporting frozen dead letters to a file, as JSON lines.

1. The file is its owner's alone, and appears under its name only when it is whole.
2. A file that is there already is not written over, unless somebody has said so. What can be no such file (nobody's
   home, no such directory, a directory) is said while its name is typed.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from relay_core.client import RelayClient
from relay_core.clock import Clock
from relay_tui.dialogs import Ask
from relay_tui.safe import clean
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
    """Return the file that somebody has typed, and whether it is there.

    Raises:
        ValueError: if there can be no such file; it says why.
    """
    try:
        path = Path(text.strip()).expanduser().absolute()
        if path.is_dir():
            raise ValueError(f"{clean(str(path))} is a directory: add a name for the file")
        if not path.parent.is_dir():
            raise ValueError(f"there is no directory {clean(str(path.parent))}: make it first, or choose another")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ValueError(f"nothing can be written to {clean(str(path.parent))}: choose another directory")
        return path, path.exists()
    except (RuntimeError, OSError) as error:  # ~somebody who is not here; a name that no file can have
        raise ValueError(f"that is no file's name: {clean(str(error))}") from None


class AskFile(Ask):
    """Ask for a file to write to."""

    def accepts(self, answer: str) -> str | None:
        """Take what can be a file."""
        problem = super().accepts(answer)
        if problem is None:
            try:
                chosen_path(answer)
            except ValueError as error:  # also of a NUL in the name
                problem = str(error)
        return problem

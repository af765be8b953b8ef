"""Export frozen dead letters to a file, as JSON lines.

1. The file is readable by its owner only, and appears under its name when it is complete.
2. An existing file is overwritten only after a confirmation. An impossible path (an unknown home, no such directory, a
   directory) is reported in the dialog that asks for it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from relay_core.client.client import RelayClient
from relay_core.clock import Clock
from relay_core.text.sanitize import clean
from relay_core.text.units import date_time
from relay_tui.widgets.dialogs import Ask

_TOGETHER = 500


def default_path(clock: Clock) -> str:
    """Return a file name for the current directory."""
    stamp = date_time(clock.now_ms()).replace(" ", "-").replace(":", "")
    return f"dead-letters-{stamp}.jsonl"


async def export_plan(client: RelayClient, plan_id: str, path: Path, progress: Callable[[int], None]) -> int:
    """Write the dead letters of a plan to a file; return their number.

    Raises:
        OSError: if the file cannot be written; it is removed then.
    """
    handle, name = await asyncio.to_thread(tempfile.mkstemp, prefix=f".{path.name}.", dir=path.parent)
    count = 0
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            batch: list[str] = []
            async for record in client.export_dead_letters(plan_id=plan_id):
                batch.append(record + "\n")
                if len(batch) == _TOGETHER:
                    await asyncio.to_thread(file.writelines, batch)
                    count += len(batch)
                    progress(count)
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
    """Return the path that was typed, and whether it exists.

    Raises:
        ValueError: if no file can be written there.
    """
    try:
        path = Path(text.strip()).expanduser().absolute()
        if path.is_dir():
            raise ValueError(f"{clean(str(path))} is a directory: add a file name")
        if not path.parent.is_dir():
            raise ValueError(f"there is no directory {clean(str(path.parent))}: create it, or choose another")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ValueError(f"{clean(str(path.parent))} is not writable: choose another directory")
        return path, path.exists()
    except (RuntimeError, OSError) as error:  # an unknown ~user; an invalid file name
        raise ValueError(f"not a valid path: {clean(str(error))}") from None


class AskFile(Ask):
    """Ask for a file to write to."""

    def problem_of(self, answer: str) -> str | None:
        """Accept a path that can be written."""
        problem = super().problem_of(answer)
        if problem is None:
            try:
                chosen_path(answer)
            except ValueError as error:  # also for a NUL in the name
                problem = str(error)
        return problem

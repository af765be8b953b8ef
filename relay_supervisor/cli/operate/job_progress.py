"""Following the run of a job to its end, with its progress on stderr.

1. The run is the supervisor's. A command that is interrupted says so and leaves it alone.
2. On a terminal, progress is one line that is drawn again and again, and gone at the end; elsewhere it is one line
   for each stage.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from relay_core.text.columns import cut
from relay_core.text.units import format_duration
from relay_supervisor.cli.output import safe

if TYPE_CHECKING:
    from relay_core.messages.operator_views import JobArguments, JobProgress, JobRun
    from relay_supervisor.cli.command import Session

_POLL_SECS = 0.25
_BAR = 24
_WIDTH = 80


async def run_and_follow(session: Session, name: str, arguments: JobArguments | None = None) -> JobRun:
    """Run a job, or join its run, and return how it went."""
    began = asyncio.get_running_loop().time()
    screen = _Screen(name)
    try:
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(session.client.run_job(name, arguments=arguments))
            while not (await asyncio.wait([ended], timeout=_POLL_SECS))[0]:
                found = next((one for one in await session.client.jobs() if one.name == name), None)
                if found is not None and found.running and found.last is not None:
                    # Not of its start: that is told by the supervisor's clock, which may be another than ours.
                    screen.show(found.last.progress, asyncio.get_running_loop().time() - began)
    except asyncio.CancelledError:
        screen.clear()
        session.note(
            f"{name} goes on in the supervisor: 'relay jobs' shows how far it is, 'relay jobs cancel {name}' ends it"
        )
        raise
    finally:
        screen.clear()
    return ended.result()


def progress_words(progress: JobProgress) -> str:
    """Return how far a run has come, such as ``45 % tables: latency``."""
    detail = f": {progress.detail}" if progress.detail else ""
    return safe(f"{_share(progress)} {progress.stage}{detail}")


def _share(progress: JobProgress) -> str:
    return f"{int(round(progress.done * 100, 6))} %"  # 100 is for what is done


class _Screen:
    """Where progress is shown."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._redraws = sys.stderr.isatty()
        self._drawn = False
        self._stage: str | None = None

    def show(self, progress: JobProgress | None, seconds: float) -> None:
        """Show how far it is."""
        if not self._redraws:
            if progress is not None and progress.stage != self._stage:
                self._stage = progress.stage
                self._write(
                    safe(f"{self._name}: {progress.stage} ({_share(progress)}, {format_duration(seconds)})") + "\n"
                )
            return
        done = progress.done if progress is not None else 0.0
        full = int(done * _BAR)
        words = progress_words(progress) if progress is not None else "starting"
        text = f"{safe(self._name)} {'█' * full}{'░' * (_BAR - full)} {format_duration(seconds):>7}  {words}"
        width = 0  # as some terminals say that do not know
        with suppress(OSError):
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        self._write(f"\r{cut(text, (width or _WIDTH) - 1)}\x1b[K")
        self._drawn = True

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._drawn:
            self._write("\r\x1b[K")
            self._drawn = False

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

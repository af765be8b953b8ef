"""Follow a job's run to its end, with its progress on stderr.

1. The run belongs to the supervisor. An interrupted command leaves it running and says so.
2. On a terminal, progress is one line that is redrawn and removed at the end; elsewhere it is one line per stage.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relay_core.text.units import format_duration
from relay_supervisor.cli.output import StatusLine, safe

if TYPE_CHECKING:
    from relay_core.messages.operator_views import JobArguments, JobProgress, JobRun
    from relay_supervisor.cli.command import Session

_POLL_SECS = 0.25
_BAR = 24


async def run_and_follow(session: Session, name: str, arguments: JobArguments | None = None) -> JobRun:
    """Run a job, or join its run, and return the run when it has ended."""
    loop = asyncio.get_running_loop()
    began = loop.time()  # the supervisor's start time may come from another clock
    line = StatusLine()
    stage: str | None = None
    try:
        async with asyncio.TaskGroup() as group:
            ended = group.create_task(session.client.run_job(name, arguments=arguments))
            while not (await asyncio.wait([ended], timeout=_POLL_SECS))[0]:
                job = next((job for job in await session.client.jobs() if job.name == name), None)
                if job is None or not job.running or job.last is None:
                    continue
                progress, took = job.last.progress, format_duration(loop.time() - began)
                if line.visible:
                    line.draw(f"{safe(name)} {_bar(progress)} {took:>7}  {progress_text(progress)}")
                elif progress is not None and progress.stage != stage:
                    stage = progress.stage
                    session.note(f"{name}: {stage} ({progress.percent} %, {took})")
    except asyncio.CancelledError:
        line.clear()
        session.note(
            f"{name} continues in the supervisor: see 'relay jobs', or stop it with 'relay jobs cancel {name}'"
        )
        raise
    finally:
        line.clear()
    return ended.result()


def progress_text(progress: JobProgress | None) -> str:
    """Return how far a run has come, such as ``45 % tables: latency``."""
    if progress is None:
        return "starting"
    return safe(f"{progress.percent} % {progress.step}")


def _bar(progress: JobProgress | None) -> str:
    full = int(progress.done * _BAR) if progress is not None else 0
    return "█" * full + "░" * (_BAR - full)

"""Start, follow, cancel and describe a run of a job, for the screens of jobs and reports.

1. The run is a task of the supervisor; its progress comes with the state stream.
2. Its end is reported on any screen; as unknown if the supervisor was restarted or stays away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relay_core.messages.operator_views import JobArguments, JobRun, JobState
from relay_core.text.bars import bar
from relay_core.text.sanitize import clean
from relay_core.text.units import about, ago, format_duration, number
from relay_tui.shell.view import View
from relay_tui.widgets.styled_lines import Piece

_POLL_SECS = 0.1
_AWAY_SECS = 60.0
"""How long the supervisor may be away before its outcome counts as unknown."""
_BAR = 24
_OUTCOMES: dict[str, Piece] = {
    "ok": ("✓ ok", "ok"),
    "failed": ("✗ failed", "bad"),
    "timed_out": ("✗ timed out", "bad"),
    "cancelled": ("○ cancelled", "warn"),
}


async def run_now(
    view: View,
    job: JobState,
    then: Callable[[], Awaitable[None]] | None = None,
    arguments: JobArguments | None = None,
) -> None:
    """Start a run and follow it in the background; `then` is called after it has ended."""
    dashboard, name = view.dashboard, clean(job.name)
    if job.running and job.last is not None:
        since = ago(job.last.started_at, view.store.now_ms())
        dashboard.toast(f"{name} is already running: started {since}")
        return
    started = await view.store.act(view.client.run_job(job.name, wait=False, arguments=arguments))
    dashboard.toast(f"{name} is running")
    view.start(_follow(view, job, started, then), doing=f"following {name}")


async def cancel_run(view: View, job: JobState) -> None:
    """Cancel the run of a job after a confirmation."""
    name = clean(job.name)
    if not job.running or job.last is None:
        view.dashboard.toast(f"{name} is not running")
        return
    about = [f"Started {ago(job.last.started_at, view.store.now_ms())}."]
    if job.last.progress is not None:
        about.append(f"Progress: {job.last.progress.percent}%, {clean(job.last.progress.step)}.")
    about.append("Its processes are stopped; finished results stay.")
    if await view.confirm(f"Cancel the run of {name}?", about, word="cancel"):
        await view.store.act(view.client.cancel_job(job.name))
        view.dashboard.toast(f"{name} is being cancelled")


async def _follow(view: View, job: JobState, started: JobRun, then: Callable[[], Awaitable[None]] | None) -> None:
    """Report the outcome of a run when it has ended."""
    dashboard, name = view.dashboard, clean(job.name)
    ended = await _end_of(view, job, started)
    if isinstance(ended, str):
        dashboard.toast(f"{name}: {ended}; the outcome of the run is unknown", "warning")
    elif ended.outcome == "ok":
        counts = ", ".join(f"{number(count)} {unit}" for unit, count in ended.counts.items())
        dashboard.toast(f"{name} finished in {format_duration(ended.took_secs)}{': ' + counts if counts else ''}")
    elif ended.outcome == "cancelled":
        dashboard.toast(f"{name} was cancelled after {format_duration(ended.took_secs)}", "warning")
    else:
        word = (ended.outcome or "").replace("_", " ")
        dashboard.toast(f"{name} {word}: {ended.error or 'J shows its output'}", "error")
    if isinstance(ended, JobRun) and then is not None:
        await then()


async def _end_of(view: View, before: JobState, started: JobRun) -> JobRun | str:
    """Return the run when it has ended, or why its outcome is unknown."""
    while view.store.is_live or view.store.silent_secs() < _AWAY_SECS:
        state = view.store.state
        now = state.jobs.get(before.name)
        if now is not None and not now.running and now.last is not None and now.last != before.last:
            return now.last
        if (now is None or (now.last is None and not now.running)) and state.at > started.started_at:
            return "the supervisor was restarted"
        await asyncio.sleep(_POLL_SECS)
    return "the supervisor does not respond"


def outcome(job: JobState, now_ms: int) -> Piece:
    """Return the last outcome of a job, or how long it has been running."""
    if job.last is None:
        return ("– not run yet", "dim")
    if job.last.outcome is None:
        return (f"◐ running {about((now_ms - job.last.started_at) / 1000)}", "accent")
    return _OUTCOMES[job.last.outcome]


def progress(run: JobRun | None, width: int) -> list[Piece]:
    """Return the progress of a run as a bar and in words; empty if it reports none."""
    if run is None or run.progress is None:
        return []
    room = max(min(_BAR, width // 4), 8)
    done = bar(run.progress.done, room).rstrip()
    return [
        (done, "accent"),
        ("·" * (room - len(done)), "dim"),
        (f" {run.progress.percent}%", "strong"),
        (f"  {clean(run.progress.step)}", ""),
    ]

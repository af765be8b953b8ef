"""One run of a job: begun, followed to its end, broken off, and told in words; for the screens of jobs and of reports.

1. A run that is asked for goes on in the supervisor; how it goes is seen in the state stream.
2. Whoever asked is told of its end, whichever screen they look at by then, and may do other things meanwhile. A
   supervisor that was started anew knows nothing of the run any more, and one that stays away tells nothing: neither
   is waited for, and that is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relay_core.messages.operator_views import JobArguments, JobProgress, JobRun, JobState
from relay_core.text.bars import bar
from relay_core.text.sanitize import clean
from relay_core.text.units import about, ago, format_duration, number
from relay_tui.shell.view import View
from relay_tui.widgets.dialogs import Confirm
from relay_tui.widgets.styled_lines import Piece

_LOOK_SECS = 0.1
_AWAY_SECS = 60.0
"""For how long nobody may answer before a run is not waited for any more."""
_BAR = 24
_OUTCOMES: dict[str, Piece] = {
    "ok": ("✓ ok", "ok"),
    "failed": ("✗ failed", "bad"),
    "timed_out": ("✗ timed out", "bad"),
    "cancelled": ("○ broken off", "warn"),
}


async def run_now(
    view: View,
    job: JobState,
    then: Callable[[], Awaitable[None]] | None = None,
    arguments: JobArguments | None = None,
) -> None:
    """Begin a run, which is followed to its end beside everything else; `then` is done once it has ended."""
    dashboard, name = view.dashboard, clean(job.name)
    if job.running and job.last is not None:
        since = ago(job.last.started_at, view.store.now_ms())
        dashboard.toast(f"{name} is under way already: it was begun {since}")
        return
    started = await view.store.act(view.client.run_job(job.name, wait=False, arguments=arguments))
    dashboard.toast(f"{name} is running")
    view.start(_follow(view, job, started, then), doing=f"following {name}")


async def cancel_run(view: View, job: JobState) -> None:
    """Break off the run of a job, once the operator has confirmed it."""
    name = clean(job.name)
    if not job.running or job.last is None:
        view.dashboard.toast(f"{name} is not running")
        return
    words = [f"It was begun {ago(job.last.started_at, view.store.now_ms())}."]
    if job.last.progress is not None:
        words.append(f"It has come to {share(job.last.progress)}, {_stage(job.last.progress)}.")
    words.append("All its processes are ended; what it has finished stays.")
    if await view.app.push_screen_wait(Confirm(f"Break off the run of {name}?", words, word="cancel")):
        await view.store.act(view.client.cancel_job(job.name))
        view.dashboard.toast(f"{name} is being broken off")  # the screen shows when it has been


async def _follow(view: View, job: JobState, started: JobRun, then: Callable[[], Awaitable[None]] | None) -> None:
    """Tell how a run went, once it has ended."""
    dashboard, name = view.dashboard, clean(job.name)
    ended = await _end_of(view, job, started)
    if isinstance(ended, str):
        dashboard.toast(f"{name}: {ended}; what became of the run is not known", "warning")
    elif ended.outcome == "ok":
        counts = ", ".join(f"{number(count)} {what}" for what, count in ended.counts.items())
        dashboard.toast(f"{name} has ended well in {took(ended)}{': ' + counts if counts else ''}")
    elif ended.outcome == "cancelled":
        dashboard.toast(f"{name} was broken off after {took(ended)}", "warning")
    else:
        word = (ended.outcome or "").replace("_", " ")
        dashboard.toast(f"{name} {word}: {ended.error or 'J shows what it has printed'}", "error")
    if isinstance(ended, JobRun) and then is not None:
        await then()


async def _end_of(view: View, before: JobState, started: JobRun) -> JobRun | str:
    """Return how a run went, once the state says so, whatever is on the screen; or why nobody will tell."""
    while view.store.is_live or view.store.silent_secs() < _AWAY_SECS:
        state = view.store.state
        now = state.jobs.get(before.name)
        if now is not None and not now.running and now.last is not None and now.last != before.last:
            return now.last
        if (now is None or (now.last is None and not now.running)) and state.at > started.started_at:
            return "the supervisor was started anew"
        await asyncio.sleep(_LOOK_SECS)
    return "the supervisor stays away"


def outcome(job: JobState, now_ms: int) -> Piece:
    """Return how a job went last, or how long it has been under way."""
    if job.last is None:
        return ("– not run yet", "dim")
    if job.last.outcome is None:
        return (f"◐ running {about((now_ms - job.last.started_at) / 1000)}", "accent")
    return _OUTCOMES[job.last.outcome]


def progress(run: JobRun | None, width: int) -> list[Piece]:
    """Return how far a run has come, as a bar and in words; nothing if it does not say."""
    if run is None or run.progress is None:
        return []
    room = max(min(_BAR, width // 4), 8)
    done = bar(run.progress.done, room).rstrip()
    return [
        (done, "accent"),
        ("·" * (room - len(done)), "dim"),
        (f" {share(run.progress)}", "strong"),
        (f"  {_stage(run.progress)}", ""),
    ]


def share(progress: JobProgress) -> str:
    """Return how far a run has come, in percent."""
    return f"{int(round(progress.done * 100, 6))}%"  # 100 is for what is done


def _stage(progress: JobProgress) -> str:
    return clean(f"{progress.stage}: {progress.detail}" if progress.detail else progress.stage)


def took(run: JobRun | None) -> str:
    """Return how long a run took, once it has ended."""
    return (
        format_duration((run.ended_at - run.started_at) / 1000) if run is not None and run.ended_at is not None else "–"
    )

"""Jobs: the scheduled upkeep, when each runs next, how it went last, running one now and breaking off what runs.

1. A run that is asked for here goes on in the supervisor; how it goes is seen in the state stream.
2. Whoever asked is told of its end, whichever screen they look at by then, and may do other things meanwhile. A
   supervisor that was started anew knows nothing of the run any more, and one that stays away tells nothing: neither
   is waited for, and that is told.
3. What a job has printed comes from a process of its own: it is shown line by line, cleaned.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator

from textual.app import ComposeResult

from relay_core.operations import JobArguments, JobProgress, JobRun, JobState
from relay_tui.actions import action
from relay_tui.dialogs import Confirm
from relay_tui.lines import Line, Lines, Piece, line
from relay_tui.safe import clean, clean_lines
from relay_tui.table import Column, LiveTable, Row
from relay_tui.view import View
from relay_tui.views.facts import fact, long_fact
from relay_tui.words import about, ago, ahead, bar, date_time, lasting, number

_LOOK_SECS = 0.1
_AWAY_SECS = 60.0
"""For how long nobody may answer before a run is not waited for any more."""
_OUTPUT_LINES = 400
_BAR = 24
_OUTCOMES: dict[str, Piece] = {
    "ok": ("✓ ok", "ok"),
    "failed": ("✗ failed", "bad"),
    "timed_out": ("✗ timed out", "bad"),
    "cancelled": ("○ broken off", "warn"),
}


class Jobs(View):
    """Every job, in the supervisor's order."""

    NAME = "jobs"
    HELP = (
        "What the supervisor does by itself again and again. A job runs once at a time; whatever it does wrong ends "
        "that run and nothing else. tab goes to what the job has printed, to scroll it."
    )
    DEFAULT_CSS = "Jobs LiveTable { height: 40%; min-height: 8; max-height: 12; } #job-detail { height: 1fr; }"

    def compose(self) -> ComposeResult:
        """Lay out the table, and what is known of the job under the cursor."""
        yield LiveTable(
            [
                Column("JOB"),
                Column("SCHEDULE", 18, from_width=76),
                Column("NEXT RUN", 14),
                Column("LAST OUTCOME", 14),
                Column("ENDED", 8, right=True),
                Column("TOOK", 7, right=True),
            ],
            empty="no jobs",
        )
        yield Output(id="job-detail")

    def draw(self) -> None:
        """Show every job."""
        self.query_one(LiveTable).set_rows([self._row(job) for job in self.store.state.jobs.values()])
        self.query_one(Lines).show(self._detail())

    def on_live_table_moved(self) -> None:
        """Show what is known of the job under the cursor."""
        detail = self.query_one(Lines)
        detail.scroll_to_line(0)
        detail.show(self._detail())

    def opened(self, argument: str) -> None:
        """Go to a job, by its name."""
        self.draw()  # it may be looked at for the first time
        self.query_one(LiveTable).go_to_key(argument)

    def _row(self, job: JobState) -> Row:
        now, last = self.store.now_ms(), job.last
        ended = last.ended_at if last is not None else None
        how = outcome(job, now)
        if last is not None and last.progress is not None:
            how = (f"◐ {_share(last.progress)} {about((now - last.started_at) / 1000)}", "accent")
        return Row(
            job.name,
            (clean(job.name), clean(job.schedule), next_run(job, now), how, ago(ended, now), _took(last)),
        )

    def _detail(self) -> Iterator[Line]:
        job = self._chosen()
        if job is None:
            return
        now, last = self.store.now_ms(), job.last
        yield line((f" {clean(job.name)}", "title"), f"  {clean(job.description)}")
        if job.problem is not None:
            yield from long_fact("cannot run", f"✗ {clean(job.problem)}", "bad", self.room.width)
        yield fact("schedule", clean(job.schedule), ("" if job.enabled else "  switched off: by hand only", "warn"))
        if job.next_run is not None:
            yield fact("next run", ahead(job.next_run, now), (f"  {date_time(job.next_run)} UTC", "dim"))
        if last is None:
            yield fact("last run", ("it has not run since the supervisor was started", "dim"))
            return
        yield fact("begun", date_time(last.started_at), (f"  {ago(last.started_at, now)}", "dim"))
        if last.arguments is not None:
            yield fact("asked for", " ".join(map(clean, last.arguments.options())))
        if last.progress is not None:
            yield fact("progress", *progress(last, self.room.width))
        yield fact("outcome", outcome(job, now), f"  took {_took(last)}" if last.ended_at is not None else "")
        if last.counts:
            yield fact("counted", ", ".join(f"{number(count)} {clean(what)}" for what, count in last.counts.items()))
        if last.error:
            yield from long_fact("error", clean(last.error), "bad", self.room.width)
        if last.output:
            yield line((" what it has printed:", "dim"))
            for text in clean_lines(last.output, _OUTPUT_LINES):
                yield line((" │ ", "dim"), text)

    def _chosen(self) -> JobState | None:
        return self.store.state.jobs.get(self.query_one(LiveTable).key or "")

    @action("run-job", "Run the job now", "N", changes=True, argument="[name]", label="run now")
    async def run(self, name: str | None) -> None:
        """Run the job under the cursor, or the one that is named."""
        job = self.store.state.jobs.get(name) if name is not None else self._chosen()
        if job is not None:
            await run_now(self, job)
        elif name is not None:
            self.dashboard.tell(f"there is no job {name}: {', '.join(self.store.state.jobs)}", "warning")

    @action("cancel-job", "Break off the run of the job", "C", changes=True, argument="[name]", label="cancel")
    async def cancel(self, name: str | None) -> None:
        """Break off the run of the job under the cursor, or of the one that is named."""
        job = self.store.state.jobs.get(name) if name is not None else self._chosen()
        if job is not None:
            await cancel_run(self, job)
        elif name is not None:
            self.dashboard.tell(f"there is no job {name}: {', '.join(self.store.state.jobs)}", "warning")

    @action("copy", "Copy what the job has said last: its error, or what it has printed", "y", label="copy")
    def copy_output(self) -> None:
        """Copy error and output."""
        job = self._chosen()
        said = [part for part in (job.last.error, job.last.output) if part] if job is not None and job.last else []
        if said:
            self.dashboard.copy("\n".join(said), "what the job said")
        else:
            self.dashboard.tell("the job has said nothing")

    @action("copy-command", "Copy the command that runs the job", "Y")
    def copy_command(self) -> None:
        """Copy a command line."""
        if (job := self._chosen()) is not None:
            self.dashboard.copy(f"relay jobs run {shlex.quote(job.name)}", "the command")


class Output(Lines, can_focus=True):
    """What a job has printed; the keys that move scroll it while it has the focus."""


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
        dashboard.tell(f"{name} is under way already: it was begun {since}")
        return
    started = await view.client.run_job(job.name, wait=False, arguments=arguments)
    dashboard.tell(f"{name} is running")
    view.start(_follow(view, job, started, then), doing=f"following {name}")


async def cancel_run(view: View, job: JobState) -> None:
    """Break off the run of a job, once the operator has confirmed it."""
    name = clean(job.name)
    if not job.running or job.last is None:
        view.dashboard.tell(f"{name} is not running")
        return
    words = [f"It was begun {ago(job.last.started_at, view.store.now_ms())}."]
    if job.last.progress is not None:
        words.append(f"It has come to {_share(job.last.progress)}, {_stage(job.last.progress)}.")
    words.append("All its processes are ended; what it has finished stays.")
    if await view.app.push_screen_wait(Confirm(f"Break off the run of {name}?", words)):
        view.dashboard.tell(f"{name} is being broken off")  # the screen shows when it has been
        await view.client.cancel_job(job.name)


async def _follow(view: View, job: JobState, started: JobRun, then: Callable[[], Awaitable[None]] | None) -> None:
    """Tell how a run went, once it has ended."""
    dashboard, name = view.dashboard, clean(job.name)
    ended = await _end_of(view, job, started)
    if ended is None:
        why = "the supervisor was started anew" if view.store.is_live else "the supervisor stays away"
        dashboard.tell(f"{name}: {why}; what became of the run is not known", "warning")
    elif ended.outcome == "ok":
        counts = ", ".join(f"{number(count)} {what}" for what, count in ended.counts.items())
        dashboard.tell(f"{name} has ended well in {_took(ended)}{': ' + counts if counts else ''}")
    elif ended.outcome == "cancelled":
        dashboard.tell(f"{name} was broken off after {_took(ended)}", "warning")
    else:
        word = (ended.outcome or "").replace("_", " ")
        dashboard.tell(f"{name} {word}: {ended.error or 'J shows what it has printed'}", "error")
    if ended is not None and then is not None:
        await then()


async def _end_of(view: View, before: JobState, started: JobRun) -> JobRun | None:
    """Return how a run went, once the state says so, whatever is on the screen; None if nobody will tell."""
    while view.store.is_live or view.store.silent_secs() < _AWAY_SECS:
        state = view.store.state
        now = state.jobs.get(before.name)
        if now is not None and not now.running and now.last is not None and now.last != before.last:
            return now.last
        if (now is None or (now.last is None and not now.running)) and state.at > started.started_at:
            return None
        await asyncio.sleep(_LOOK_SECS)
    return None


def next_run(job: JobState, now_ms: int) -> Piece:
    """Return when a job runs next, in words."""
    if job.running:
        return ("now", "accent")
    if job.problem is not None:
        return ("✗ cannot run", "bad")
    if not job.enabled:
        return ("– by hand only", "dim")
    return (ahead(job.next_run, now_ms), "")


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
        (f" {_share(run.progress)}", "strong"),
        (f"  {_stage(run.progress)}", ""),
    ]


def _share(progress: JobProgress) -> str:
    return f"{int(round(progress.done * 100, 6))}%"  # 100 is for what is done


def _stage(progress: JobProgress) -> str:
    return clean(f"{progress.stage}: {progress.detail}" if progress.detail else progress.stage)


def _took(run: JobRun | None) -> str:
    return lasting((run.ended_at - run.started_at) / 1000) if run is not None and run.ended_at is not None else "–"

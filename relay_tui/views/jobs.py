"""Jobs: the scheduled maintenance, next runs and last outcomes; running and cancelling one (job_runs.py)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from textual.app import ComposeResult

from relay_core.messages.operator_views import JobState
from relay_core.text.sanitize import clean, clean_lines
from relay_core.text.units import about, ago, date_time, format_duration, number, time_until
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.facts import fact, long_fact
from relay_tui.views.job_runs import cancel_run, outcome, progress, run_now
from relay_tui.widgets.styled_lines import Line, Lines, Piece, line
from relay_tui.widgets.table import Column, LiveTable, Row

_OUTPUT_LINES = 400


class Jobs(View):
    """All jobs, in the supervisor's order."""

    NAME = "jobs"
    HELP = (
        "The supervisor's scheduled jobs. A job runs once at a time; an error ends that run and nothing else. "
        "tab goes to the output of the job, to scroll it."
    )
    DEFAULT_CSS = "Jobs LiveTable { height: 40%; min-height: 8; max-height: 12; } #job-detail { height: 1fr; }"

    def compose(self) -> ComposeResult:
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
        self.query_one(LiveTable).set_rows([self._row(job) for job in self.store.state.jobs.values()])
        self.query_one(Lines).show(self._detail())

    def on_live_table_moved(self) -> None:
        detail = self.query_one(Lines)
        detail.go_to(0)
        detail.show(self._detail())

    def open_argument(self, argument: str) -> None:
        self.draw()  # this may be the first visit
        self.query_one(LiveTable).go_to_key(argument)

    def _row(self, job: JobState) -> Row:
        now, last = self.store.now_ms(), job.last
        ended = last.ended_at if last is not None else None
        took = format_duration(last.took_secs if last is not None else None)
        how = outcome(job, now)
        if last is not None and last.progress is not None:
            how = (f"◐ {last.progress.percent}% {about((now - last.started_at) / 1000)}", "accent")
        return Row(
            job.name,
            (clean(job.name), clean(job.schedule), _next_run(job, now), how, ago(ended, now), took),
        )

    def _detail(self) -> Iterator[Line]:
        job = self._chosen()
        if job is None:
            return
        now, last = self.store.now_ms(), job.last
        yield line((f" {clean(job.name)}", "title"), f"  {clean(job.description)}")
        if job.problem is not None:
            yield from long_fact("cannot run", f"✗ {clean(job.problem)}", "bad", self.area.width)
        yield fact("schedule", clean(job.schedule), ("" if job.enabled else "  disabled: manual only", "warn"))
        if job.next_run is not None:
            yield fact("next run", time_until(job.next_run, now), (f"  {date_time(job.next_run)} UTC", "dim"))
        if last is None:
            yield fact("last run", ("not run since the supervisor was started", "dim"))
            return
        yield fact("started", date_time(last.started_at), (f"  {ago(last.started_at, now)}", "dim"))
        if last.arguments is not None:
            yield fact("arguments", " ".join(map(clean, last.arguments.options())))
        if last.progress is not None:
            yield fact("progress", *progress(last, self.area.width))
        yield fact(
            "outcome",
            outcome(job, now),
            f"  took {format_duration(last.took_secs)}" if last.ended_at is not None else "",
        )
        if last.counts:
            yield fact("counted", ", ".join(f"{number(count)} {clean(unit)}" for unit, count in last.counts.items()))
        if last.error:
            yield from long_fact("error", clean(last.error), "bad", self.area.width)
        if last.output:
            yield line((" output:", "dim"))
            for text in clean_lines(last.output, _OUTPUT_LINES):
                yield line((" │ ", "dim"), text)

    def _chosen(self) -> JobState | None:
        return self.store.state.jobs.get(self.query_one(LiveTable).key or "")

    def _find(self, name: str | None) -> JobState | None:
        """Return the named job, else the one under the cursor; an unknown name is reported."""
        if name is None:
            return self._chosen()
        if name not in self.store.state.jobs:
            self.dashboard.toast(f"there is no job {name}: {', '.join(self.store.state.jobs)}", "warning")
        return self.store.state.jobs.get(name)

    @action("run-job", "Run the job now", "N", changes=True, argument="[name]", label="run now")
    async def run(self, name: str | None) -> None:
        if (job := self._find(name)) is not None:
            await run_now(self, job)

    @action("cancel-job", "Cancel the run of the job", "C", changes=True, argument="[name]", label="cancel")
    async def cancel(self, name: str | None) -> None:
        if (job := self._find(name)) is not None:
            await cancel_run(self, job)

    @action("copy", "Copy the last error and output of the job", "y", label="copy")
    def copy_output(self) -> None:
        job = self._chosen()
        parts = [job.last.error, job.last.output] if job is not None and job.last is not None else []
        if text := "\n".join(filter(None, parts)):
            self.dashboard.copy(text, "the output")
        else:
            self.dashboard.toast("the job has no output")

    @action("copy-command", "Copy the command that runs the job", "Y")
    def copy_command(self) -> None:
        if (job := self._chosen()) is not None:
            self.dashboard.copy(f"relay jobs run {shlex.quote(job.name)}", "the command")


class Output(Lines, can_focus=True):
    """The detail of a job, with its output; it can be focused and scrolled."""


def _next_run(job: JobState, now_ms: int) -> Piece:
    """Return when a job runs next."""
    if job.running:
        return ("now", "accent")
    if job.problem is not None:
        return ("✗ cannot run", "bad")
    if not job.enabled:
        return ("– manual only", "dim")
    return (time_until(job.next_run, now_ms), "")

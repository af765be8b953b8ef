"""Reports: the nightly reports and their freshness, one of them as tables and bars, and making one now.

1. The list has the newest first. An open report shows its sections on the left and the rows of one section on the
   right; escape goes back.
2. Only the newest report can be overdue.
3. Reports are files, which are not in the state stream: the list is requested every few seconds while it is shown, and
   after each run of the job.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from textwrap import wrap

from textual.app import ComposeResult
from textual.containers import Horizontal

from relay_core.errors import RelayError, SupervisorUnavailable
from relay_core.messages.operator_views import JobArguments
from relay_core.protocol.report import read_nightly, unreadable
from relay_core.protocol.reporting import REPORT_JOB, Report
from relay_core.text.sanitize import clean, pretty_json
from relay_core.text.units import ago, date_time, plural, size
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.excerpt import excerpt
from relay_tui.views.facts import fact, long_fact
from relay_tui.views.job_runs import cancel_run, run_now
from relay_tui.views.reports.layout import attention, cells_of, columns_of, freshness, job_lines
from relay_tui.views.reports.nightly import Section, sections_of
from relay_tui.widgets.dialogs import Reader
from relay_tui.widgets.styled_lines import Line, Lines, Piece, line
from relay_tui.widgets.table import Column, LiveTable, Row

_LIST = (
    Column("DAY", 11),
    Column("FRESHNESS", 16),
    Column("ATTENTION", 16),
    Column("EVENTS", 11, right=True),
    Column("MADE", 20, from_width=100),
    Column("", 10, right=True),
    Column("SIZE", 10, right=True, from_width=90),
)
_SECTIONS = (Column("SECTION"), Column("ROWS", 5, right=True))


class Reports(View):
    """The list of reports, or an open one."""

    NAME = "reports"
    HELP = (
        "Each night Spark makes a report of the previous day. enter opens one; there, tab goes from the sections to "
        "the rows, and enter on a row goes to its traces, or shows the whole row."
    )
    DEFAULT_CSS = """
    #report-about { height: 3; }
    #report-left { width: 1fr; }
    #report-rows { width: 1fr; display: none; margin-left: 1; }
    Reports.-open #report-rows { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._reports: list[Report] = []
        self._problem: str | None = None
        self._date: str | None = None
        """The day of the open report."""
        self._sections: list[Section] = []
        self._shown: tuple[int | None, ...] = ()
        """The section, the chart and the width that are drawn."""
        self._came_from_rows = False
        """Whether the rows get the focus back after a link to another screen."""
        self._chart_column = ""
        """The name of the column that was last chosen as a chart."""

    def compose(self) -> ComposeResult:
        yield Lines(id="report-about")
        with Horizontal():
            yield LiveTable(_LIST, id="report-left")
            yield LiveTable([Column("")], empty="nothing in this section", id="report-rows")

    @property
    def _left(self) -> LiveTable:
        return self.query_one("#report-left", LiveTable)

    @property
    def _rows(self) -> LiveTable:
        return self.query_one("#report-rows", LiveTable)

    @property
    def _section(self) -> Section | None:
        """The section under the cursor."""
        key = self._left.key or ""
        return self._sections[int(key)] if self._date is not None and key.isdecimal() else None

    # Showing

    def draw(self) -> None:
        self.poll(self._ask, doing="loading the reports")
        self._draw_about()
        if self._date is None:
            self._left.set_rows([self._row(report) for report in self._reports], empty=self._empty())
        else:
            self._draw_section()

    @property
    def first_focus(self) -> LiveTable:
        """The table that had the focus."""
        return self._rows if self._came_from_rows else self._left

    def on_show(self) -> None:
        self._came_from_rows = False

    def on_live_table_moved(self, event: LiveTable.Moved) -> None:
        if self._date is not None and event.table is self._left:
            self._draw_section()
        elif self._date is not None and event.table is self._rows:
            self._draw_about()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    async def on_live_table_chosen(self) -> None:
        self.start(self.open(), doing="opening")

    def open_argument(self, argument: str) -> None:
        self.start(self._open(argument), doing=f"opening the report of {clean(argument)}")

    async def _ask(self) -> None:
        try:
            self._reports = (await self.client.reports()).reports
            self._problem = None
        except SupervisorUnavailable:
            return  # the banner says so
        except RelayError as error:
            self._problem = str(error)
        self.draw()

    def _row(self, report: Report) -> Row:
        now = self.store.now_ms()
        word, style = freshness(report, now)
        is_newest = report is self._reports[0]
        cells = (
            (word, style) if is_newest else (word.removeprefix("▲ "), "dim"),
            attention(report),
            f"{report.events:,}" if report.events is not None else "–",
            date_time(report.made_at),
            ago(report.made_at, now),
        )
        return Row(report.date, (clean(report.date), *cells, size(report.bytes)))

    def _empty(self) -> str:
        """Return the text of an empty list."""
        job = self.store.state.jobs.get(REPORT_JOB)
        if job is None or (self.dashboard.read_only and not job.running and job.problem is None):
            return "no report yet"
        if job.running:
            return "no report yet: one is being made"
        if job.problem is not None:
            return "no report yet, and none can be made: see above"
        return f"no report yet{': the first is made at night' if job.enabled else ''}; N makes one of today now"

    def _about(self) -> Iterator[Line]:
        now = self.store.now_ms()
        job = self.store.state.jobs.get(REPORT_JOB)
        if job is not None and (self._date is None or job.running):
            yield from job_lines(job, now, self.area.width)
        if self._problem is not None:
            yield from long_fact("✗ list", clean(self._problem), "bad", self.area.width)
        if self._date is None:
            if self._reports:
                yield fact("newest", freshness(self._reports[0], now), f"  of {clean(self._reports[0].date)}")
            return
        report = next((report for report in self._reports if report.date == self._date), None)
        made: list[Piece] = [freshness(report, now), (f"  made {ago(report.made_at, now)}", "dim")] if report else []
        yield line((f" Report of {clean(self._date)}  ", "title"), *made)
        if (section := self._section) is not None:
            pieces: list[Piece] = [(f" {section.title}", "strong"), (f"  {plural(len(section.rows), 'row')}", "dim")]
            if (column := self._chart(section)) is not None:
                more = f" (c: next of {len(section.shares)})" if len(section.shares) > 1 else ""
                pieces.append((f"  bars: {section.columns[column]}{more}", "dim"))
            yield (*pieces, (f"  {section.note}" if section.note else "", "warn"))
            yield from self._explanation(section)

    def _explanation(self, section: Section) -> Iterator[Line]:
        """Yield the description of a section, and of the row under its cursor in a fixed number of lines."""
        for part in wrap(section.about, max(self.area.width - 2, 20)):
            yield line((f" {part}", "dim"))
        if section.explanations is None:
            return
        chosen = self._chosen_row()
        text, command = ("", "")
        if section.explanations:
            text, command = section.explanations[chosen[1] if chosen is not None else 0]
        lines = wrap(text, max(self.area.width - 2, 20), max_lines=2, placeholder=" …")
        yield from (line(f" {part}") for part in [*lines, "", ""][:2])
        yield line((" $ ", "dim"), command) if command else line("")

    def _draw_section(self) -> None:
        """Draw the section under the cursor, unless it is drawn already."""
        section = self._section
        if section is None:
            return
        at, chart, width = int(self._left.key or 0), self._chart(section), self._rows.size.width
        if not width or self._shown == (at, chart, width):  # without a width it is about to be shown
            return
        self._shown = (at, chart, width)
        before = self._rows.key or ""
        columns = columns_of(section, chart, width)
        self._rows.set_columns(columns)
        self._rows.set_rows(
            [Row(f"{at}:{row}", cells_of(section, row, chart, columns[-1].width)) for row in range(len(section.rows))]
        )
        if not before.startswith(f"{at}:"):
            self._rows.go_to(0)
        self._draw_about()

    def _draw_about(self) -> None:
        lines, about = list(self._about()), self.query_one("#report-about", Lines)
        about.styles.height = max(len(lines), 3)
        about.show(lines)

    def _chart(self, section: Section) -> int | None:
        """Return the column of the chart: the one last chosen by name, else the section's default or the first."""
        charts = sorted(section.shares)
        default = section.bar if section.bar in charts else next(iter(charts), None)
        return next((at for at in charts if section.columns[at] == self._chart_column), default)

    # Opening and going back

    async def _open(self, date: str) -> None:
        content = await self.client.report(date)
        report = await asyncio.to_thread(read_nightly, content.report)  # up to 3 MB
        if report is None:
            self.dashboard.toast(clean(unreadable(content.date)), "warning")
            return
        self._date, self._sections, self._shown = content.date, list(sections_of(report)), ()
        self.add_class("-open")
        self._left.styles.width = 30 if self.area.width >= 100 else 20
        self._left.set_columns(_SECTIONS)
        self._left.set_rows(
            [Row(str(at), (section.title, f"{len(section.rows):,}")) for at, section in enumerate(self._sections)],
            empty="the report is empty",
        )
        self._left.go_to(0)
        self.draw()
        self.call_after_refresh(self._draw_section)

    @action("open", "Open the report; in it, go to the row's traces, or show the whole row", "enter", label="open")
    async def open(self) -> None:
        if self._date is None:
            if self._left.key is not None:
                await self._open(self._left.key)
        elif not self._rows.has_focus:
            self._rows.focus()
        elif (chosen := self._chosen_row()) is not None:
            section, at = chosen
            link = section.links[at]
            if link is not None:
                self._came_from_rows = True
                await self.dashboard.goto("traces", link)
            else:
                self.show_row()

    @action("back", "Go back: from the rows to the sections, from a report to the list", "escape", label="back")
    def go_back(self) -> None:
        if self._date is None:
            return
        if self._rows.has_focus:
            self._left.focus()
            return
        date, self._date, self._sections = self._date, None, []
        self.remove_class("-open")
        self._left.styles.width = "1fr"
        self._left.set_columns(_LIST)
        self.draw()
        self._left.go_to_key(date)

    @action("row", "Show the whole row", "v", label="whole row")
    def show_row(self) -> None:
        if (chosen := self._chosen_row()) is not None:
            section, at = chosen
            lines = [line(text) for text in excerpt(section.sources[at])]
            self.app.push_screen(Reader(f"{section.title}, row {at + 1:,}", lines))

    @action("chart", "Draw another column as bars", "c", label="bars")
    def draw_another(self) -> None:
        if (section := self._section) is not None and (now := self._chart(section)) is not None:
            charts = sorted(section.shares)
            self._chart_column = section.columns[charts[(charts.index(now) + 1) % len(charts)]]
            self._draw_section()

    def _chosen_row(self) -> tuple[Section, int] | None:
        """Return the row under the cursor and its section."""
        _, _, at = (self._rows.key or "").partition(":")
        section = self._section
        return (section, int(at)) if section is not None and at and int(at) < len(section.rows) else None

    # Making one, and copying

    @action("run-report", "Make the nightly report now", "N", changes=True, label="run now")
    async def run(self) -> None:
        job = self.store.state.jobs.get(REPORT_JOB) or next(
            (job for job in await self.client.jobs() if job.name == REPORT_JOB), None
        )
        if job is None:
            self.dashboard.toast("this supervisor has no report job", "warning")
            return
        await run_now(self, job, self._reload, JobArguments(today=True))

    @action("cancel-report", "Cancel the report that is being made", "C", changes=True, label="cancel")
    async def cancel(self) -> None:
        if (job := self.store.state.jobs.get(REPORT_JOB)) is not None:
            await cancel_run(self, job)

    async def _reload(self) -> None:
        """Load the list and the open report again."""
        await self._ask()
        if self._date is not None and any(report.date == self._date for report in self._reports):
            await self._open(self._date)

    @action("copy", "Copy the row as JSON, or the report's day", "y", label="copy")
    async def copy_row(self) -> None:
        if (chosen := self._chosen_row()) is not None:
            section, at = chosen
            self.dashboard.copy(await asyncio.to_thread(_json, section.sources[at]), "the row")
        elif self._left.key is not None and self._date is None:
            self.dashboard.copy(self._left.key, "the day")

    @action("copy-command", "Copy the command that shows the report", "Y")
    def copy_command(self) -> None:
        date = self._date or self._left.key
        if date is not None:
            self.dashboard.copy(f"relay report show {shlex.quote(date)}", "the command")


def _json(value: object) -> str:
    try:
        return pretty_json(value)
    except RecursionError:
        return "(nested too deeply)"

"""No supervisor: what to do when nobody answers. It goes away by itself as soon as somebody does."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from textual.app import ComposeResult

from relay_core.text.sanitize import clean
from relay_tui.demo.session import DemoSession
from relay_tui.launch import exit_reason, start_supervisor
from relay_tui.shell.actions import NO_SUPERVISOR, action
from relay_tui.shell.view import View
from relay_tui.widgets.styled_lines import BLANK, Line, Lines, line


class NoSupervisor(View):
    """Say that nobody is there, and offer what helps."""

    NAME = NO_SUPERVISOR
    HELP = "No supervisor answers on the socket. This screen goes away when one does."

    def compose(self) -> ComposeResult:
        yield Lines()

    def draw(self) -> None:
        self.query_one(Lines).show(self._lines())

    def _lines(self) -> Iterator[Line]:
        yield BLANK
        refused = self.store.is_refused
        yield line(("  This supervisor cannot be followed" if refused else "  No supervisor is running", "title"))
        yield BLANK
        problem = clean(self.store.problem or f"nobody answers on {self.store.socket}", 2000)
        for text in wrap(problem, max(self.area.width - 4, 20), break_on_hyphens=False):
            yield line(f"  {text}")
        yield BLANK
        if not self.dashboard.read_only and not refused:
            yield line(("  S", "mark"), "  start one now, in the background: it goes on when this dashboard is left")
        yield line(("  D", "mark"), "  look at a demo instead: a supervisor of its own with living traffic")
        yield line(("  q", "mark"), "  leave")
        yield BLANK
        yield line(("  As soon as a supervisor answers, this goes on by itself.", "dim"))

    @action("start-supervisor", "Start a supervisor in the background", "S", changes=True, label="start one")
    async def start_one(self) -> None:
        if self.store.is_refused:
            self.dashboard.toast("somebody has this socket: a second supervisor would not help", "warning")
            return
        process, log = start_supervisor(self.client)
        self.dashboard.toast(f"starting; its log is {log}")
        why = await exit_reason(process, log, self.client)
        if why is not None:
            reason = why.removeprefix("cannot start: ")
            self.dashboard.toast(f"the supervisor did not start: {reason}", "error")

    @action("demo", "Look at a demo: a supervisor of its own with living traffic", "D", label="demo")
    def open_demo(self) -> None:
        self.dashboard.follow_demo(DemoSession.start())

"""The screen that replaces all others while no supervisor responds."""

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
    """Offers to start a supervisor or a demo."""

    NAME = NO_SUPERVISOR
    HELP = "No supervisor responds on the socket. This screen closes when one does."

    def compose(self) -> ComposeResult:
        yield Lines()

    def draw(self) -> None:
        self.query_one(Lines).show(self._lines())

    def _lines(self) -> Iterator[Line]:
        yield BLANK
        refused = self.store.is_refused
        yield line(("  The supervisor rejects this dashboard" if refused else "  No supervisor is running", "title"))
        yield BLANK
        problem = clean(self.store.problem or f"no response on {self.store.socket}", 2000)
        for text in wrap(problem, max(self.area.width - 4, 20), break_on_hyphens=False):
            yield line(f"  {text}")
        yield BLANK
        if not self.dashboard.read_only and not refused:
            yield line(("  S", "mark"), "  start one in the background; it keeps running when the dashboard exits")
        yield line(("  D", "mark"), "  open a demo instead: a temporary supervisor with live traffic")
        yield line(("  q", "mark"), "  quit")
        yield BLANK
        yield line(("  The dashboard continues as soon as a supervisor responds.", "dim"))

    @action("start-supervisor", "Start a supervisor in the background", "S", changes=True, label="start one")
    async def start_one(self) -> None:
        if self.store.is_refused:
            self.dashboard.toast("another supervisor uses this socket: a second one would not start", "warning")
            return
        process, log = start_supervisor(self.client)
        self.dashboard.toast(f"starting; its log is {log}")
        why = await exit_reason(process, log, self.client)
        if why is not None:
            reason = why.removeprefix("cannot start: ")
            self.dashboard.toast(f"the supervisor did not start: {reason}", "error")

    @action("demo", "Open a demo: a temporary supervisor with live traffic", "D", label="demo")
    def open_demo(self) -> None:
        self.dashboard.follow_demo(DemoSession.start())

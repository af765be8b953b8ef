"""Breakers: their states, history and next probes, and the actions that reset or force one."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult

from relay_core.protocol.live_state import LiveBreaker
from relay_core.text.sanitize import clean
from relay_core.text.units import about, clock_time, time_until
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.states import CIRCUITS, breaker_state
from relay_tui.widgets.dialogs import Ask
from relay_tui.widgets.styled_lines import Line, Lines, line
from relay_tui.widgets.table import Column, LiveTable, Row

_ORDER = {"OPEN": 0, "HALF_OPEN": 1, "CLOSED": 2}


class Breakers(View):
    """All breakers, those that are not closed first."""

    NAME = "breakers"
    HELP = (
        "After repeated failures a breaker opens and nothing is delivered to its target; then probes test it "
        "(half-open). History: newest on the right."
    )
    DEFAULT_CSS = "#breaker-detail { height: 9; }"

    def compose(self) -> ComposeResult:
        yield LiveTable(
            [
                Column("STATE", 13),
                Column("TARGET"),
                Column("FAILURES", 8, right=True),
                Column("HISTORY", 12, from_width=76),
                Column("IN STATE", 8, right=True),
                Column("NEXT PROBE", 10, right=True),
            ],
            empty="no deliveries yet: publish a message with 7",
        )
        yield Lines(id="breaker-detail")

    def draw(self) -> None:
        breakers = self.store.state.breakers
        order = sorted(breakers, key=lambda key: (_ORDER[breakers[key].state], breakers[key].subject or key))
        self.query_one(LiveTable).set_rows([self._row(key, breakers[key]) for key in order])
        self.query_one(Lines).show(self._detail())

    def on_live_table_moved(self) -> None:
        self.query_one(Lines).show(self._detail())

    def open_argument(self, argument: str) -> None:
        """Go to a target, by hash or subject."""
        subjects = {breaker.subject: key for key, breaker in self.store.state.breakers.items()}
        self.query_one(LiveTable).go_to_key(subjects.get(argument, argument))

    def _row(self, key: str, breaker: LiveBreaker) -> Row:
        since = breaker.transitions[-1].at_ms if breaker.transitions else None
        history = "".join(CIRCUITS[transition.state][0][0] for transition in breaker.transitions)
        now = self.store.now_ms()
        return Row(
            key,
            (
                breaker_state(breaker),
                clean(breaker.subject or key),
                str(breaker.consecutive_failures),
                (history, "dim"),
                about((now - since) / 1000) if since is not None else "–",
                time_until(breaker.retry_at, now),
            ),
        )

    def _detail(self) -> Iterator[Line]:
        key = self.query_one(LiveTable).key
        breaker = self.store.state.breakers.get(key or "")
        if breaker is None:
            return
        yield line((f" {clean(breaker.subject or str(key))}", "title"), (f"  {key}", "dim"))
        if not breaker.transitions:
            yield line((" closed since the start", "dim"))
        for transition in reversed(breaker.transitions[-7:]):
            word, style = CIRCUITS[transition.state]
            yield line((f" {clock_time(transition.at_ms)} ", "dim"), (f"{word:12}", style), clean(transition.why))

    def _target(self) -> tuple[str, str] | None:
        """Return the key and the name of the breaker under the cursor."""
        key = self.query_one(LiveTable).key
        breaker = self.store.state.breakers.get(key or "")
        return (str(key), clean(breaker.subject or str(key))) if breaker is not None else None

    @action("reset", "Close the breaker and reset its failures", "X", changes=True, label="reset")
    async def reset(self) -> None:
        if (target := self._target()) is None:
            return
        key, name = target
        if await self.confirm(f"Close the breaker of {name}?", ["Deliveries resume at once."], word="close"):
            await self.store.act(self.client.reset_breaker(key, "reset in the dashboard"))
            self.dashboard.toast(f"the breaker of {name} is closed")

    @action("force", "Hold the breaker open until it is reset", "F", changes=True, label="force open")
    async def force(self) -> None:
        if (target := self._target()) is None:
            return
        key, name = target
        reason = await self.app.push_screen_wait(
            Ask(f"Hold the breaker of {name} open", ["Nothing is delivered to it until the breaker is reset. Reason?"])
        )
        if reason is not None:
            await self.store.act(self.client.force_breaker(key, "OPEN", reason))
            self.dashboard.toast(f"the breaker of {name} is held open")

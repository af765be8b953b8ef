"""Adapters: the bridges to the outside, how each is doing, and what may be done about it.

1. The rows come from the state stream. What it does not carry, which agents belong to which chats, is asked for every
   few seconds while the screen is looked at, and at once after a change.
2. A test tells in words what it found: well, not well, cannot say, or not running at all.
"""

from __future__ import annotations

import shlex

from textual.app import ComposeResult

from relay_core.errors import SupervisorUnavailable
from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.messages.subjects import ADAPTER_PREFIX, adapter_of, adapter_subject
from relay_core.protocol.operating import AdapterList
from relay_core.text.sanitize import clean
from relay_core.text.units import about, number, plural
from relay_tui.shell.actions import action
from relay_tui.shell.view import View
from relay_tui.views.adapters.detail import breakers_of, detail_lines, health_of
from relay_tui.views.facts import long_fact
from relay_tui.views.states import adapter_rank, adapter_state
from relay_tui.widgets.dialogs import Confirm
from relay_tui.widgets.styled_lines import Lines
from relay_tui.widgets.table import Column, LiveTable, Row

_ASK_SECS = 5.0


class Adapters(View):
    """Every adapter of adapters.json, those in trouble first."""

    NAME = "adapters"
    HELP = (
        "An adapter takes messages out to a platform and brings in what comes from there. While it is disabled or "
        "not connected its mail waits. adapters.json is where adapters and bindings are written down."
    )
    DEFAULT_CSS = "#adapters-file { height: 0; } #adapter-detail { height: 14; }"

    _known: AdapterList | None = None
    _asked_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield Lines(id="adapters-file")
        yield LiveTable(
            [
                Column("STATE", 14),
                Column("ADAPTER"),
                Column("TYPE", 16, from_width=90),
                Column("DELIVERED", 9, right=True),
                Column("FAILED", 7, right=True),
                Column("WAITING", 7, right=True),
                Column("SINCE", 6, right=True, from_width=76),
                Column("HEALTH", 10),
            ],
            empty="no adapters: write one into adapters.json, it is read as soon as it is saved",
        )
        yield Lines(id="adapter-detail")

    def draw(self) -> None:
        self._ask_again()
        problems = [problem for problem in self.store.state.problems if "adapters.json" in problem]
        wrong = [one for text in problems for one in long_fact("✗ the file", clean(text), "bad", self.area.width)]
        top = self.query_one("#adapters-file", Lines)
        top.styles.height = len(wrong)
        top.show(wrong)
        adapters = self.store.state.adapters.values()
        order = sorted(adapters, key=lambda one: (adapter_rank(one), one.id))
        self.query_one(LiveTable).set_rows([self._row(one) for one in order])
        self._draw_detail()

    def on_show(self) -> None:
        """Ask again for what is not in the picture."""
        self._asked_at = float("-inf")

    def on_live_table_moved(self) -> None:
        self._draw_detail()

    def open_argument(self, argument: str) -> None:
        """Go to an adapter, by its id or its subject."""
        self.draw()  # it may be looked at for the first time
        table = self.query_one(LiveTable)
        if not table.go_to_key(argument) and argument.startswith(ADAPTER_PREFIX):
            table.go_to_key(adapter_of(argument))

    def _draw_detail(self) -> None:
        detail = self.query_one("#adapter-detail", Lines)
        detail.styles.height = 14 if self.area.height >= 26 else 9
        adapter = self._chosen()
        bindings = self._known.bindings if self._known is not None else []
        detail.show(
            detail_lines(adapter, self.store.state, bindings, self.store.now_ms(), self.area.width) if adapter else []
        )

    def _ask_again(self) -> None:
        now = self.store.clock.monotonic()
        if self.store.is_live and now - self._asked_at >= _ASK_SECS:
            self._asked_at = now
            self.start(self._ask(), doing="asking for the bindings")

    async def _ask(self) -> None:
        try:
            self._known = await self.client.adapters()
        except SupervisorUnavailable:
            return  # the banner says so
        self._draw_detail()

    def _row(self, adapter: ConfiguredAdapter) -> Row:
        state, now = adapter.state, self.store.now_ms()
        counts = (state.delivered, state.failed, state.depth) if state is not None else (None, None, None)
        delivered, failed, depth = counts
        return Row(
            adapter.id,
            (
                adapter_state(adapter),
                clean(adapter.id),
                clean(adapter.type),
                number(delivered),
                (number(failed), "bad" if failed else ""),
                (number(depth), "warn" if depth else ""),
                about((now - state.since) / 1000) if state is not None else "–",
                health_of(adapter),
            ),
        )

    def _chosen(self) -> ConfiguredAdapter | None:
        return self.store.state.adapters.get(self.query_one(LiveTable).key or "")

    def _changed(self) -> None:
        """Have the bindings asked for anew."""
        self._asked_at = float("-inf")
        self.draw()

    @action("enable", "Run the adapter from now on", "E", changes=True, label="enable")
    async def enable(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._tell(await self.store.act(self.client.change_adapter(adapter.id, "enable")))
            self._changed()

    @action("disable", "Run the adapter no longer; its mail waits", "D", changes=True, label="disable")
    async def disable(self) -> None:
        if (adapter := self._chosen()) is None:
            return
        name, waiting = clean(adapter.id), adapter.state.depth if adapter.state is not None else 0
        what = ["What is under way is finished, then it is stopped; adapters.json is changed, so it stays off."]
        what.append(f"Its mail waits ({plural(waiting, 'message')} now), until it is enabled again.")
        if await self.app.push_screen_wait(Confirm(f"Disable the adapter {name}?", what, word="disable")):
            await self.store.act(self.client.change_adapter(adapter.id, "disable"))
            self.dashboard.toast(f"{name} is disabled: its mail waits")
            self._changed()

    @action("test", "Ask the adapter now whether it is well", "T", changes=True, label="test")
    async def test(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._tell(await self.store.act(self.client.change_adapter(adapter.id, "test")), tested=True)

    @action("reload", "Make the adapter anew, of what adapters.json says", "L", changes=True, label="reload")
    async def reload(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._known = await self.store.act(self.client.reload_adapters(adapter.id))
            for one in self._known.adapters:
                if one.id == adapter.id:
                    self._tell(one)
            self._draw_detail()

    @action("reload-adapters", "Read adapters.json again, and do what has changed in it", changes=True)
    async def reload_all(self) -> None:
        self._known = await self.store.act(self.client.reload_adapters())
        wrong = sum(one.problem is not None for one in self._known.adapters)
        if self._known.problem is not None:
            self.dashboard.toast(self._known.problem, "error")
        else:
            said = f"adapters.json was read: {plural(len(self._known.adapters), 'adapter')}"
            self.dashboard.toast(
                f"{said}, {wrong} with a problem" if wrong else said, "warning" if wrong else "information"
            )
        self._draw_detail()

    @action("adapter-breaker", "Look at the adapter's breaker", "b", label="breaker")
    async def look_at_breaker(self) -> None:
        if (adapter := self._chosen()) is None:
            return
        breakers = sorted(breakers_of(self.store.state, adapter.id), key=lambda pair: pair[1].state == "CLOSED")
        if breakers:
            await self.dashboard.goto("breakers", breakers[0][0])
        else:
            self.dashboard.toast(f"{clean(adapter.id)} has no breaker yet: nothing was delivered to it")

    @action("adapter-dead-letters", "List what could not be delivered to the adapter", "d", label="dead letters")
    async def look_at_dead_letters(self) -> None:
        if (adapter := self._chosen()) is not None:
            await self.dashboard.goto("dead-letters", f"to~{adapter_subject(adapter.id)}")

    @action("copy", "Copy the adapter's id", "y", label="copy")
    def copy_id(self) -> None:
        if (adapter := self._chosen()) is not None:
            self.dashboard.copy(adapter.id, "the id")

    @action("copy-command", "Copy the command that tests the adapter", "Y")
    def copy_command(self) -> None:
        if (adapter := self._chosen()) is not None:
            self.dashboard.copy(f"relay adapters test {shlex.quote(adapter.id)}", "the command")

    def _tell(self, adapter: ConfiguredAdapter, *, tested: bool = False) -> None:
        """Say how an adapter is now."""
        name, state = clean(adapter.id), adapter.state
        if adapter.problem is not None:
            self.dashboard.toast(f"{name}: {adapter.problem}", "error")
        elif state is None:
            why = "it is disabled" if not adapter.enabled else "it has not started"
            self.dashboard.toast(f"{name} is not running: {why}", "warning")
        elif state.healthy is False or state.state == "error":
            self.dashboard.toast(f"{name} is not well: {state.detail or 'it does not say why'}", "error")
        elif tested and state.healthy is None:
            self.dashboard.toast(f"{name} has no health to ask for; it says it is {state.state}", "warning")
        else:
            self.dashboard.toast(f"{name} is well: {state.state}" if tested else f"{name} is {state.state}")

"""Adapters: their states, counts, errors and bindings, and the actions on them.

The rows come from the state stream. Bindings are not in it: they are requested every few seconds while the screen is
shown, and at once after a change.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

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
from relay_tui.widgets.styled_lines import Line, Lines
from relay_tui.widgets.table import Column, LiveTable, Row


class Adapters(View):
    """All adapters of adapters.json, those with problems first."""

    NAME = "adapters"
    HELP = (
        "An adapter exchanges messages with an external platform. While it is disabled or disconnected, its messages "
        "wait. Adapters and bindings are configured in adapters.json."
    )
    DEFAULT_CSS = "#adapters-file { height: 0; } #adapter-detail { height: 14; }"

    _details: AdapterList | None = None

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
                Column("HEALTH", 11),
            ],
            empty="no adapters: add one to adapters.json, which is read when it is saved",
        )
        yield Lines(id="adapter-detail")

    def draw(self) -> None:
        self.poll(self._ask, doing="loading the bindings")
        problems = [problem for problem in self.store.state.problems if "adapters.json" in problem]
        lines = [part for text in problems for part in long_fact("✗ file", clean(text), "bad", self.area.width)]
        top = self.query_one("#adapters-file", Lines)
        top.styles.height = len(lines)
        top.show(lines)
        adapters = self.store.state.adapters.values()
        order = sorted(adapters, key=lambda adapter: (adapter_rank(adapter), adapter.id))
        self.query_one(LiveTable).set_rows([self._row(adapter) for adapter in order])
        self._draw_detail()

    def on_live_table_moved(self) -> None:
        self._draw_detail()

    def open_argument(self, argument: str) -> None:
        """Go to an adapter, by its id or its subject."""
        self.draw()  # this may be the first visit
        table = self.query_one(LiveTable)
        if not table.go_to_key(argument) and argument.startswith(ADAPTER_PREFIX):
            table.go_to_key(adapter_of(argument))

    def _draw_detail(self) -> None:
        detail = self.query_one("#adapter-detail", Lines)
        detail.styles.height = 14 if self.area.height >= 26 else 9
        bindings = self._details.bindings if self._details is not None else []
        lines: Iterable[Line] = ()
        if (adapter := self._chosen()) is not None:
            lines = detail_lines(adapter, self.store.state, bindings, self.store.now_ms(), self.area.width)
        detail.show(lines)

    async def _ask(self) -> None:
        try:
            self._details = await self.client.adapters()
        except SupervisorUnavailable:
            return  # the banner says so
        self._draw_detail()

    def _row(self, adapter: ConfiguredAdapter) -> Row:
        state, now = adapter.state, self.store.now_ms()
        delivered, failed, depth = (state.delivered, state.failed, state.depth) if state is not None else (None,) * 3
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
        self.poll_soon()
        self.draw()

    @action("enable", "Enable the adapter", "E", changes=True, label="enable")
    async def enable(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._report(await self.store.act(self.client.change_adapter(adapter.id, "enable")))
            self._changed()

    @action("disable", "Disable the adapter; its messages wait", "D", changes=True, label="disable")
    async def disable(self) -> None:
        if (adapter := self._chosen()) is None:
            return
        name, waiting = clean(adapter.id), adapter.state.depth if adapter.state is not None else 0
        about = [
            "It stops after the current deliveries, and stays disabled: adapters.json is changed.",
            f"Its messages wait ({waiting:,} now) until it is enabled again.",
        ]
        if await self.confirm(f"Disable the adapter {name}?", about, word="disable"):
            await self.store.act(self.client.change_adapter(adapter.id, "disable"))
            self.dashboard.toast(f"{name} is disabled: its messages wait")
            self._changed()

    @action("test", "Test the adapter's health now", "T", changes=True, label="test")
    async def test(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._report(await self.store.act(self.client.change_adapter(adapter.id, "test")), tested=True)

    @action("reload", "Restart the adapter with its settings in adapters.json", "L", changes=True, label="reload")
    async def reload(self) -> None:
        if (adapter := self._chosen()) is not None:
            self._details = await self.store.act(self.client.reload_adapters(adapter.id))
            for reloaded in self._details.adapters:
                if reloaded.id == adapter.id:
                    self._report(reloaded)
            self._draw_detail()

    @action("reload-adapters", "Read adapters.json again, and apply the changes", changes=True)
    async def reload_all(self) -> None:
        details = self._details = await self.store.act(self.client.reload_adapters())
        invalid = sum(adapter.problem is not None for adapter in details.adapters)
        count = plural(len(details.adapters), "adapter")
        if details.problem is not None:
            self.dashboard.toast(details.problem, "error")
        elif invalid:
            self.dashboard.toast(f"adapters.json was read: {count}, {invalid} with a problem", "warning")
        else:
            self.dashboard.toast(f"adapters.json was read: {count}")
        self._draw_detail()

    @action("adapter-breaker", "Go to the adapter's breaker", "b", label="breaker")
    async def go_to_breaker(self) -> None:
        if (adapter := self._chosen()) is None:
            return
        breakers = sorted(breakers_of(self.store.state, adapter.id), key=lambda pair: pair[1].state == "CLOSED")
        if breakers:
            await self.dashboard.goto("breakers", breakers[0][0])
        else:
            self.dashboard.toast(f"{clean(adapter.id)} has no breaker yet: there were no deliveries to it")

    @action("adapter-dead-letters", "Go to the adapter's dead letters", "d", label="dead letters")
    async def go_to_dead_letters(self) -> None:
        if (adapter := self._chosen()) is not None:
            await self.dashboard.goto("dead-letters", f"to~{adapter_subject(adapter.id)}")

    @action("copy", "Copy the adapter's id", "y", label="copy")
    def copy_id(self) -> None:
        self.copy_text(self.query_one(LiveTable).key, "the id")

    @action("copy-command", "Copy the command that tests the adapter", "Y")
    def copy_command(self) -> None:
        if (adapter := self._chosen()) is not None:
            self.dashboard.copy(f"relay adapters test {shlex.quote(adapter.id)}", "the command")

    def _report(self, adapter: ConfiguredAdapter, *, tested: bool = False) -> None:
        """Report the state of an adapter after an action."""
        name, state = clean(adapter.id), adapter.state
        if adapter.problem is not None:
            self.dashboard.toast(f"{name}: {adapter.problem}", "error")
        elif state is None:
            why = "it is disabled" if not adapter.enabled else "it has not started"
            self.dashboard.toast(f"{name} is not running: {why}", "warning")
        elif state.healthy is False or state.state == "error":
            self.dashboard.toast(f"{name} is unhealthy: {state.detail or 'it gives no reason'}", "error")
        elif tested and state.healthy is None:
            self.dashboard.toast(f"{name} has no health check; its state is {state.state}", "warning")
        else:
            self.dashboard.toast(f"{name} is healthy: {state.state}" if tested else f"{name} is {state.state}")

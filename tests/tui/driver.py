"""The dashboard under test: the real application without a terminal, on a real supervisor, worked by keys."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from relay_core.clock import Clock
from relay_supervisor.supervisor import Supervisor
from relay_tui.app import Dashboard, all_actions
from relay_tui.shell.view import View

PATIENCE_SECS = 30.0
TEST_PARTS = [("Screen", "_compositor"), ("App", "_notifications")]
"""The private parts of Textual that tests use."""

all_actions()  # imports every screen now, not while the loop of a test runs


def strips_of(app: App[Any]) -> list[Strip]:
    """Return the lines of the screen as Textual paints them."""
    return app.screen._compositor.render_strips()


class Driver:
    """A dashboard that is running."""

    def __init__(self, app: Dashboard, pilot: Pilot[None]) -> None:
        self.app = app
        self.expected_faults: list[str] = []
        self._pilot = pilot

    @property
    def view(self) -> View:
        return self.app.view

    def lines(self) -> list[str]:
        """Return what is on the screen."""
        return [strip.text for strip in strips_of(self.app)]

    def notifications(self) -> list[str]:
        """Return the texts of all notifications."""
        return [notification.message for notification in self.app._notifications]

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines())

    async def press(self, *keys: str) -> None:
        """Press keys; a text of several characters that is no key's name is typed."""
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text, character by character."""
        for char in text:
            await self._pilot.press({" ": "space"}.get(char, char))

    async def confirm(self, word: str) -> None:
        """Answer a question with its word."""
        await self.type(word)
        await self.press("enter")

    async def click(self, x: int, y: int, times: int = 1) -> None:
        await self._pilot.click(offset=(x, y), times=times)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    async def until(self, found: str | Callable[[], Any]) -> None:
        """Return once a text is on the screen, or a condition holds."""
        holds = found if callable(found) else lambda: re.search(found, self.text())
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                while not holds():
                    await self._pilot.pause()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"never seen: {found}\n{self.text()}") from None


@asynccontextmanager
async def a_dashboard(
    supervisor: Supervisor | None, *, size: tuple[int, int] = (120, 36), clock: Clock | None = None, **options: Any
) -> AsyncIterator[Driver]:
    """Run the dashboard on a supervisor, and return once it is live."""
    if supervisor is not None:
        options = {"socket": supervisor.socket, "data_dir": supervisor.context.relay.data_dir.path, **options}
    app = Dashboard(clock=clock, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        tui = Driver(app, pilot)
        if supervisor is not None:
            await tui.until(lambda: hasattr(app, "store") and app.store.is_live and app.store.state.at)
        yield tui
        assert app.tasks.faults == tui.expected_faults

"""The area of the frame that holds the screens. A screen is created when it is first visited, and then kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from textual.widgets import ContentSwitcher

from relay_tui.shell.view import View


class ViewSwitcher(ContentSwitcher):
    """Shows one view at a time."""

    def __init__(self, view_class: Callable[[str], type[View]]) -> None:
        super().__init__(id="views")
        self._view_class = view_class
        self._views: dict[str, View] = {}
        self._switching = asyncio.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether no view has been created yet."""
        return not self._views

    @property
    def view(self) -> View:
        """The view that is shown."""
        return self._views[str(self.current)]

    def get(self, name: str) -> View:
        """Return a view that has been shown."""
        return self._views[name]

    async def show(self, wanted: Callable[[], str]) -> None:
        """Show a view; `wanted` names it once an earlier switch has ended."""
        async with self._switching:
            name = wanted()
            if name not in self._views:
                view = self._view_class(name)()
                view.id = name
                await self.mount(view)
                self._views[name] = view
            if self.current != name:
                self.current = name
                self.screen.set_focus(self._views[name].first_focus)

"""The palette: everything that can be done, searched as one types. It is fed by the registry alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from relay_tui.actions import EVERYWHERE, Action

if TYPE_CHECKING:
    from relay_tui.app import Dashboard


class ActionProvider(Provider):
    """Offer the actions of the screen, then those of the others."""

    @property
    def _dashboard(self) -> Dashboard:
        return cast("Dashboard", self.app)

    def _actions(self) -> list[Action]:
        return self._dashboard.registry.offered(self._dashboard.where)

    async def discover(self) -> Hits:
        """Offer everything while nothing is typed."""
        for one in self._actions():
            yield DiscoveryHit(_shown(one), partial(self._do, one), help=_where(one))

    async def search(self, query: str) -> AsyncIterator[Hit]:
        """Offer what fits to what is typed."""
        matcher = self.matcher(query)
        for one in self._actions():
            text = _shown(one)
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._do, one), help=_where(one))

    def _do(self, one: Action) -> None:
        self._dashboard.call_later(self._dashboard.do, one)


def open_palette(dashboard: Dashboard) -> None:
    """Open the palette."""
    dashboard.push_screen(CommandPalette(providers=[ActionProvider], placeholder="What do you want to do?"))


def _shown(one: Action) -> str:
    return f"{one.title} ({one.key})" if one.key else one.title


def _where(one: Action) -> str:
    return f":{one.name} {EVERYWHERE}" if one.where == EVERYWHERE else f":{one.name} on {one.where}"

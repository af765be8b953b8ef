"""The command palette: a search over all actions of the registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider

from relay_tui.shell.actions import EVERYWHERE, Action

if TYPE_CHECKING:
    from relay_tui.shell.host import ActionHost


class ActionProvider(Provider):
    """Offer the actions of the current screen, then those of the others."""

    @property
    def _host(self) -> ActionHost:
        return cast("ActionHost", self.app)

    def _actions(self) -> list[Action]:
        return self._host.registry.offered(self._host.where)

    async def discover(self) -> Hits:
        """Offer every action while nothing is typed."""
        for action in self._actions():
            yield DiscoveryHit(_title(action), partial(self._run, action), help=_help(action))

    async def search(self, query: str) -> AsyncIterator[Hit]:
        """Offer the actions that match the typed text."""
        matcher = self.matcher(query)
        for action in self._actions():
            text = _title(action)
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, action), help=_help(action))

    def _run(self, action: Action) -> None:
        self.app.call_later(self._host.do, action)


def action_palette() -> CommandPalette:
    """Return the palette."""
    return CommandPalette(providers=[ActionProvider], placeholder="What do you want to do?")


def _title(action: Action) -> str:
    return f"{action.title} ({action.key})" if action.key else action.title


def _help(action: Action) -> str:
    return f":{action.name} {EVERYWHERE}" if action.where == EVERYWHERE else f":{action.name} on {action.where}"

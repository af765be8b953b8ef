"""The screens of the dashboard, in one list: how each is reached, and where it is made.

A screen's module is imported when the screen, or what can be done on it, is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from relay_tui.view import View


NOBODY = "nobody"
"""The screen that stands in for all others while there is no supervisor; nobody goes there."""


class Listed(NamedTuple):
    """A screen of the dashboard: how it is reached, and where it is made."""

    name: str
    title: str
    key: str | None
    made_by: str


SCREENS = (
    Listed("overview", "Overview", "1", "overview.view:Overview"),
    Listed("breakers", "Breakers", "2", "breakers:Breakers"),
    Listed("mailboxes", "Mailboxes and senders", "3", "mailboxes.view:Mailboxes"),
    Listed("adapters", "Adapters", "4", "adapters.view:Adapters"),
    Listed("traces", "Traces", "5", "traces.view:Traces"),
    Listed("dead-letters", "Dead letters", "6", "dead_letters.view:DeadLetters"),
    Listed("publish", "Publish", "7", "publish.view:Publish"),
    Listed("reports", "Reports", "R", "reports.view:Reports"),
    Listed("jobs", "Jobs", "J", "jobs:Jobs"),
    Listed(NOBODY, "No supervisor", None, "nobody:Nobody"),
)


def screen_class(name: str) -> type[View]:
    """Return the class of a screen."""
    module, _, attribute = next(one.made_by for one in SCREENS if one.name == name).partition(":")
    found: type[View] = getattr(import_module(f"relay_tui.views.{module}"), attribute)
    return found

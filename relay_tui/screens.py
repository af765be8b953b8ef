"""The screens of the dashboard, in one list: how each is reached, and the view that shows it.

A view's module is imported when the view or its actions are first needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from relay_tui.shell.actions import NO_SUPERVISOR
from relay_tui.shell.view import View


class ScreenEntry(NamedTuple):
    """A screen of the dashboard."""

    name: str
    title: str
    key: str | None
    view: str
    """The module of its view, below `relay_tui.views`, and the class."""


SCREENS = (
    ScreenEntry("overview", "Overview", "1", "overview.view:Overview"),
    ScreenEntry("breakers", "Breakers", "2", "breakers:Breakers"),
    ScreenEntry("mailboxes", "Mailboxes and senders", "3", "mailboxes.view:Mailboxes"),
    ScreenEntry("adapters", "Adapters", "4", "adapters.view:Adapters"),
    ScreenEntry("traces", "Traces", "5", "traces.view:Traces"),
    ScreenEntry("dead-letters", "Dead letters", "6", "dead_letters.view:DeadLetters"),
    ScreenEntry("publish", "Publish", "7", "publish.view:Publish"),
    ScreenEntry("reports", "Reports", "R", "reports.view:Reports"),
    ScreenEntry("jobs", "Jobs", "J", "jobs:Jobs"),
    ScreenEntry(NO_SUPERVISOR, "No supervisor", None, "no_supervisor:NoSupervisor"),
)


def view_class(name: str) -> type[View]:
    """Return the class of a screen's view."""
    module, _, attribute = next(entry.view for entry in SCREENS if entry.name == name).partition(":")
    found: type[View] = getattr(import_module(f"relay_tui.views.{module}"), attribute)
    return found

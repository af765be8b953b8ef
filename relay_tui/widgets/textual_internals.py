"""The private parts of Textual that the dashboard uses; no other module uses any.

`paint_now` writes a widget to the terminal before Textual's next refresh, which no public call does. If a release
renames the parts, the next refresh paints the widget, up to 20 ms later, and tests/tui/test_textual_internals.py names
the missing part.
"""

from __future__ import annotations

from typing import Any

from textual.screen import Screen
from textual.widget import Widget

SCREEN_PARTS = ("_dirty_widgets", "_on_timer_update")
"""The private attributes of `Screen` that are used here."""


def paint_now(screen: Screen[Any], widget: Widget) -> None:
    """Paint a widget now if this release of Textual allows it."""
    dirty_widgets, update = (getattr(screen, name, None) for name in SCREEN_PARTS)
    if dirty_widgets is not None and update is not None:
        dirty_widgets.add(widget)
        update()

"""Help for one screen, from the registry: what it shows, and every key that does something on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from relay_tui.actions import EVERYWHERE, Action, Registry
from relay_tui.keys import keys_path
from relay_tui.lines import BLANK, Line, line
from relay_tui.view import View


def help_lines(view: View, registry: Registry) -> list[Line]:
    """Return the help of a screen."""
    return list(_lines(view, registry))


def _lines(view: View, registry: Registry) -> Iterator[Line]:
    for text in wrap(view.HELP, 80):
        yield line(text)
    yield BLANK
    here = registry.of(view.NAME)
    yield line(("On this screen", "title"))
    yield from _table([one for one in here if one.where != EVERYWHERE])
    yield BLANK
    yield line(("Everywhere", "title"))
    yield from _table([one for one in here if one.where == EVERYWHERE])
    yield BLANK
    yield line((f"Every action can be typed after : by its name. Own keys: {keys_path()}", "dim"))


def _table(actions: Sequence[Action]) -> Iterator[Line]:
    for one in actions:
        keys = " ".join(key for key in (one.key, *one.keys) if key)
        name = f"{one.name} {one.argument}" if one.argument else one.name
        yield line((f"  {keys:18}", "mark"), f"{one.title}", (f"  :{name}", "dim"))

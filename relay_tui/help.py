"""Help for one screen, from the registry: what it shows, and every key that does something on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from relay_tui.actions import EVERYWHERE, Action, Registry
from relay_tui.keys import keys_path
from relay_tui.lines import BLANK, Line, line
from relay_tui.safe import clean
from relay_tui.view import View

_KEYS_WIDTH = 18
_NAME_WIDTH = 22


def help_lines(view: View, registry: Registry, width: int) -> list[Line]:
    """Return the help of a screen, in lines of a width."""
    return list(_lines(view, registry, max(width, 40)))


def _lines(view: View, registry: Registry, width: int) -> Iterator[Line]:
    for text in wrap(view.HELP, width):
        yield line(text)
    yield BLANK
    here = registry.of(view.NAME)
    yield line(("On this screen", "title"))
    yield from _table([one for one in here if one.where != EVERYWHERE], width)
    yield BLANK
    yield line(("Everywhere", "title"))
    yield from _table([one for one in here if one.where == EVERYWHERE], width)
    yield BLANK
    for text in wrap(f"Every action can be typed after : by its name. Own keys: {clean(str(keys_path()))}", width):
        yield line((text, "dim"))


def _table(actions: Sequence[Action], width: int) -> Iterator[Line]:
    for one in actions:
        keys = " ".join(key for key in (one.key, *one.keys) if key)
        name = f":{one.name} {one.argument}" if one.argument else f":{one.name}"
        first, *more = wrap(one.title, max(width - _KEYS_WIDTH - _NAME_WIDTH, 20))
        yield line(
            (f"  {keys:{_KEYS_WIDTH - 2}}", "mark"),
            f"{first:{max(width - _KEYS_WIDTH - _NAME_WIDTH, 20)}} ",
            (name, "dim"),
        )
        for text in more:
            yield line(" " * _KEYS_WIDTH + text)

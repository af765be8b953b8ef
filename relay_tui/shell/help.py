"""The help of a screen: its description, and its actions from the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay_core.text.columns import wrapped
from relay_core.text.sanitize import clean
from relay_tui.shell.actions import EVERYWHERE, Action, Registry
from relay_tui.shell.keys import keys_path
from relay_tui.shell.view import View
from relay_tui.widgets.styled_lines import BLANK, Line, line

_KEYS_WIDTH = 18
_NAME_WIDTH = 22


def help_lines(view: View, registry: Registry, width: int) -> Iterator[Line]:
    """Yield the help of a screen in lines of at most `width` columns."""
    width = max(width, 40)
    yield from map(line, wrapped(view.HELP, width))
    here = registry.of(view.NAME)
    for title, is_global in (("On this screen", False), ("Everywhere", True)):
        yield BLANK
        yield line((title, "title"))
        yield from _table([action for action in here if (action.where == EVERYWHERE) == is_global], width)
    yield BLANK
    for text in wrapped(f"Every action can be typed after : by its name. Your keys: {clean(str(keys_path()))}", width):
        yield line((text, "dim"))


def _table(actions: Sequence[Action], width: int) -> Iterator[Line]:
    title_width = max(width - _KEYS_WIDTH - _NAME_WIDTH, 20)
    for action in actions:
        keys = " ".join(filter(None, (action.key, *action.keys)))
        name = f":{action.name} {action.argument}" if action.argument else f":{action.name}"
        first, *more = wrapped(action.title, title_width)
        yield line((f"  {keys:{_KEYS_WIDTH - 2}}", "mark"), f"{first:{title_width}} ", (name, "dim"))
        yield from (line(" " * _KEYS_WIDTH + text) for text in more)

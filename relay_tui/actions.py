"""The one registry of actions: keys, palette, command line, help and footer all come from it.

1. An action is declared beside the method that does it: ``@action(...)`` on a method of the dashboard or of a view.
   Its name is the word for the command line, its key what is pressed.
2. What changes something has a capital letter for a key, and does not exist with --read-only. What destroys asks first.
   While there is no connection it is refused at once: nothing waits for one and happens later.
3. A view's own action goes before one that is there on every screen. Within one screen no two have the same key:
   a test holds it, and a file of the operator's that breaks it is told so and left aside.
4. The actions of the other screens can be asked for by name. Those of the one that stands in while there is no
   supervisor cannot: they would take a live one away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from relay_tui.screens import NOBODY

if TYPE_CHECKING:
    from textual import events

F = TypeVar("F", bound=Callable[..., Any])

EVERYWHERE = "everywhere"


@dataclass(frozen=True, slots=True)
class Action:
    """Something that an operator can do."""

    name: str
    """The word for the command line and for the file of keys."""
    title: str
    """What it does, as the palette and the help say it."""
    key: str | None
    """What is pressed, unless the operator's file says otherwise."""
    method: str
    where: str = EVERYWHERE
    """The view it belongs to."""
    changes: bool = False
    """Whether anything but the display is different afterwards."""
    asks: bool = False
    """Whether it asks the supervisor before it changes anything, as a plan does."""
    argument: str | None = None
    """What may follow its name in the command line; in brackets if it need not."""
    label: str | None = None
    """One or two words for the footer; None if it is not shown there."""
    keys: tuple[str, ...] = ()
    """Further keys, such as arrows."""

    @property
    def needs_supervisor(self) -> bool:
        """Whether it is refused while there is no connection."""
        return (self.changes or self.asks) and self.where not in (EVERYWHERE, NOBODY)


def action(
    name: str,
    title: str,
    key: str | None = None,
    *,
    changes: bool = False,
    asks: bool = False,
    argument: str | None = None,
    label: str | None = None,
    keys: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Declare that a method is an action; a method with an `argument` gets it as a text, or None."""

    def declare(method: F) -> F:
        made = Action(
            name, title, key, method.__name__, changes=changes, asks=asks, argument=argument, label=label, keys=keys
        )
        method.__action__ = made  # type: ignore[attr-defined]
        return method

    return declare


def key_of(event: events.Key) -> str:
    """Return a key that was pressed as actions name it: a character as it is, anything else by its name."""
    return event.character if event.character and event.is_printable and event.character != " " else event.key


def actions_of(owner: type[Any], where: str = EVERYWHERE) -> Iterator[Action]:
    """Yield what a class declares, in its order, bases last."""
    seen = set()
    for cls in owner.__mro__:
        for name, member in vars(cls).items():
            declared = getattr(member, "__action__", None)
            if isinstance(declared, Action) and name not in seen:
                seen.add(name)
                yield replace(declared, where=where)


class Registry:
    """Every action there is, by view and by key."""

    def __init__(self, actions: list[Action], *, read_only: bool = False, keys: dict[str, str] | None = None) -> None:
        keys = keys or {}
        self.actions = [rebound(one, keys) for one in actions if not (read_only and one.changes)]
        self._by_key: dict[tuple[str, str], Action] = {}
        for one in self.actions:
            for key in (one.key, *one.keys):
                if key is not None:
                    self._by_key.setdefault((one.where, key), one)

    def of(self, where: str) -> list[Action]:
        """Return what can be done on a screen: its own first."""
        own = [one for one in self.actions if one.where == where]
        return own + [one for one in self.actions if one.where == EVERYWHERE]

    def offered(self, where: str) -> list[Action]:
        """Return what can be asked for by name on a screen: what can be done there, then what is done elsewhere."""
        here = self.of(where)
        return here + [one for one in self.actions if one not in here and one.where != NOBODY]

    def by_key(self, where: str, key: str) -> Action | None:
        """Return what a key does on a screen."""
        return self._by_key.get((where, key)) or self._by_key.get((EVERYWHERE, key))

    def by_name(self, where: str, name: str) -> list[Action]:
        """Return the action with a name, or all whose names begin so; what is here goes before what is elsewhere."""
        here = self.of(where)
        elsewhere = self.offered(where)[len(here) :]
        for among in (here, elsewhere):
            if exact := [one for one in among if one.name == name]:
                return exact[:1]
        for among in (here, elsewhere):
            if begun := {one.name: one for one in among if one.name.startswith(name)}:
                return list(begun.values())
        return []


def conflicts(actions: list[Action]) -> Iterator[str]:
    """Yield where two actions of one screen share a key."""
    taken: dict[tuple[str, str], Action] = {}
    for one in actions:
        for key in filter(None, (one.key, *one.keys)):
            other = taken.setdefault((one.where, key), one)
            if other is not one:
                yield f"{key!r} is both {other.name} and {one.name} on {one.where}"


def rebound(one: Action, keys: dict[str, str]) -> Action:
    """Return an action with the key that the operator has given it, if any; an empty one takes all its keys away."""
    if one.name not in keys:
        return one
    key = keys[one.name]
    return replace(one, key=key) if key else replace(one, key=None, keys=())

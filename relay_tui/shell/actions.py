"""The registry of actions, from which keys, palette, command line, help and footer derive.

1. ``@action(...)`` declares a method of a view, or of the global actions, as an action with a name and a key.
2. An action that changes something has a capital letter as its key, and does not exist with --read-only. A destructive
   one asks for confirmation. Without a connection it is refused, not queued.
3. A view's action takes precedence over a global one. Within a screen no two actions share a key: a test checks ours,
   and a key file that violates it is reported and ignored.
4. Actions of other screens can be run by name, except those of the no-supervisor screen: they would replace a live
   supervisor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from textual import events

F = TypeVar("F", bound=Callable[..., Any])

EVERYWHERE = "everywhere"
NO_SUPERVISOR = "no-supervisor"
"""The screen that replaces all others while there is no supervisor."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action of the operator."""

    name: str
    """Its name on the command line and in the key file."""
    title: str
    """Its description in palette and help."""
    key: str | None
    """Its key, unless the key file sets another."""
    method: str
    where: str = EVERYWHERE
    """The screen it belongs to."""
    changes: bool = False
    """Whether it changes anything but the display."""
    asks: bool = False
    """Whether it needs the supervisor although it changes nothing, as a plan does."""
    argument: str | None = None
    """The argument on the command line, in brackets if it is optional."""
    label: str | None = None
    """Its label in the footer; None if it is not shown there."""
    keys: tuple[str, ...] = ()
    """Further keys, such as arrows."""

    @property
    def needs_supervisor(self) -> bool:
        """Whether it is refused without a connection."""
        return (self.changes or self.asks) and self.where not in (EVERYWHERE, NO_SUPERVISOR)


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
    """Declare a method as an action; with `argument` the method takes a `str | None`."""

    def declare(method: F) -> F:
        method.__action__ = Action(  # type: ignore[attr-defined]
            name, title, key, method.__name__, changes=changes, asks=asks, argument=argument, label=label, keys=keys
        )
        return method

    return declare


def key_of(event: events.Key) -> str:
    """Return the key of an event as actions name it: a printable character, or the name of the key."""
    return event.character if event.character and event.is_printable and event.character != " " else event.key


def actions_of(owner: type[Any], where: str = EVERYWHERE) -> Iterator[Action]:
    """Yield the actions that a class declares, in order, those of its bases last."""
    seen = set()
    for cls in owner.__mro__:
        for name, member in vars(cls).items():
            declared = getattr(member, "__action__", None)
            if isinstance(declared, Action) and name not in seen:
                seen.add(name)
                yield replace(declared, where=where)


class Registry:
    """All actions, by screen and by key."""

    def __init__(self, actions: list[Action], *, read_only: bool = False, keys: dict[str, str] | None = None) -> None:
        self.actions = [rebound(action, keys or {}) for action in actions if not (read_only and action.changes)]
        self._by_key: dict[tuple[str, str], Action] = {}
        for action in self.actions:
            for key in filter(None, (action.key, *action.keys)):
                self._by_key.setdefault((action.where, key), action)

    def of(self, where: str) -> list[Action]:
        """Return the actions of a screen, then the global ones."""
        return [action for place in (where, EVERYWHERE) for action in self.actions if action.where == place]

    def offered(self, where: str) -> list[Action]:
        """Return the actions that can be run by name on a screen: its own and the global ones, then the others."""
        here = self.of(where)
        return here + [action for action in self.actions if action not in here and action.where != NO_SUPERVISOR]

    def by_key(self, where: str, key: str) -> Action | None:
        """Return the action of a key on a screen."""
        return self._by_key.get((where, key)) or self._by_key.get((EVERYWHERE, key))

    def by_name(self, where: str, name: str) -> list[Action]:
        """Return the action with this name, or all whose names have this prefix; those of the screen win."""
        here = self.of(where)
        elsewhere = self.offered(where)[len(here) :]
        for candidates in (here, elsewhere):
            if exact := [action for action in candidates if action.name == name]:
                return exact[:1]
        for candidates in (here, elsewhere):
            if matches := {action.name: action for action in candidates if action.name.startswith(name)}:
                return list(matches.values())
        return []


def conflicts(actions: list[Action]) -> Iterator[str]:
    """Yield a message for each key that two actions of a screen share."""
    taken: dict[tuple[str, str], Action] = {}
    for action in actions:
        for key in filter(None, (action.key, *action.keys)):
            other = taken.setdefault((action.where, key), action)
            if other is not action:
                yield f"{key!r} is both {other.name} and {action.name} on {action.where}"


def rebound(action: Action, keys: dict[str, str]) -> Action:
    """Return an action with its key of the key file, if any; an empty key removes all its keys."""
    if action.name not in keys:
        return action
    key = keys[action.name]
    return replace(action, key=key) if key else replace(action, key=None, keys=())

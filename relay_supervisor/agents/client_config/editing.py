"""Put what an agent needs into the text of one of its files, or take it out: text in, text out.

1. What is not ours stays as it is, byte for byte. A text that is no plain JSON or TOML (comments, a trailing comma, a
   key twice), or that has something else where ours belongs, is not changed: `ByHand` says why.
2. What is there already stays, so twice is the same as once; what is there for another subject is replaced, and that is
   told. What a person has added to our server's entry, such as a variable, stays with it.
3. The result is read again before anybody gets it: without ours it must say exactly what the text said before.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from relay_supervisor.agents.client_config import json_text, toml_text
from relay_supervisor.agents.client_config.catalog import File, Hook, Server, subject_of

Place = tuple[str | int, ...]

_NOTHING: Any = object()
_RISKY = "it is written in a way that cannot be changed without a risk to the rest"


class ByHand(Exception):
    """The text cannot be changed safely; the reason."""


class Edited(NamedTuple):
    """A text that was changed, or need not be."""

    text: str
    places: list[str]
    """Where something was changed, for people."""
    empty: bool = False
    """Whether nothing is left that means anything."""
    replaced: Sequence[str] = ()
    """The subjects that had the place until now."""


def put(file: File, text: str) -> Edited:
    """Return the text with everything that the file needs.

    Raises:
        ByHand: if it cannot be changed.
    """
    kind = _Toml if file.name.endswith(".toml") else _Json
    text = text if text.strip() else kind.empty
    before = kind.read(text)
    after, places = text, []
    for key, value in file.frame.items():
        if key not in before:
            after = kind.put(after, (key,), value)
    for entry in file.entries:
        changed = _put_server(kind, after, entry) if isinstance(entry, Server) else _put_hook(kind, after, entry)
        if changed != after:
            places.append(".".join(entry.path))
        after = changed
    if not places:
        return Edited(text, [])
    said = _check(kind, file, before, after)
    if _added(file, before) != _added(file, said):
        raise ByHand(_RISKY)
    return Edited(after, places, replaced=sorted(_subjects(file, before) - _subjects(file, said)))


def take(file: File, text: str, subject: str) -> Edited:
    """Return the text without what is there for a subject.

    Raises:
        ByHand: if it cannot be changed.
    """
    kind = _Toml if file.name.endswith(".toml") else _Json
    before = kind.read(text)
    after, places = text, []
    for entry in file.entries:
        while found := next(_ours(kind.read(after), entry, subject), None):
            after = kind.take(after, found)
            if ".".join(entry.path) not in places:
                places.append(".".join(entry.path))
    if not places:
        return Edited(text, [])
    left = _check(kind, file, before, after)
    says_nothing = not (left.keys() - file.frame.keys())
    return Edited(after, places, empty=says_nothing and (kind is _Json or not after.strip()))  # TOML has comments


class _Json:
    empty = "{}\n"
    put = staticmethod(json_text.put)
    take = staticmethod(json_text.take)

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        try:
            said = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ByHand(f"it is no plain JSON ({error})") from None
        if not isinstance(said, dict):
            raise ByHand("it is no JSON object")
        return said


class _Toml:
    empty = ""

    @staticmethod
    def put(text: str, path: Place, value: Any) -> str:
        return toml_text.put(text, ".".join(map(str, path)), value)

    @staticmethod
    def take(text: str, path: Place) -> str:
        changed = toml_text.take(text, ".".join(map(str, path)))
        if changed == text:
            raise ByHand("the table is written in another way")
        return changed

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ByHand(f"it is no TOML ({error})") from None


_Kind = type[_Json] | type[_Toml]


def _put_server(kind: _Kind, text: str, entry: Server) -> str:
    found = _at(kind.read(text), entry.path)
    if found is _NOTHING:
        return kind.put(text, entry.path, entry.value)
    if subject_of(found) is None:
        raise ByHand(f"{'.'.join(entry.path)} is something else there")
    command = {key: entry.value[key] for key in ("command", "args") if key in entry.value}
    if command.items() <= found.items():
        return text
    return kind.put(text, entry.path, {**entry.value, **found, **command})


def _put_hook(kind: _Kind, text: str, entry: Hook) -> str:
    said = kind.read(text)
    found = list(_ours(said, entry))
    commands = [one["command"] for place in found for one in _handlers(_at(said, place))]
    if commands == [one["command"] for one in _handlers(entry.value)]:
        return text
    for place in reversed(found):
        text = kind.take(text, place)
    return kind.put(text, (*entry.path, json_text.APPEND), entry.value)


def _ours(said: dict[str, Any], entry: Server | Hook, subject: str | None = None) -> Iterator[Place]:
    """Yield the places of what is ours where an entry belongs: a whole group if nobody else has a part in it."""

    def is_ours(one: Any) -> bool:
        found = subject_of(one)
        return found is not None and subject in (None, found)

    value = _at(said, entry.path)
    if isinstance(entry, Server):
        if is_ours(value):
            yield entry.path
        return
    if value is _NOTHING:
        return
    if not isinstance(value, list):
        raise ByHand(f"{'.'.join(entry.path)} is no list there")
    for at, group in enumerate(value):
        handlers = _handlers(group)
        mine = [number for number, one in enumerate(handlers) if is_ours(one)]
        if mine and len(mine) == len(handlers):
            yield (*entry.path, at)
            continue
        for number in mine:
            yield (*entry.path, at, "hooks", number)


def _handlers(group: Any) -> list[Any]:
    if isinstance(group, dict) and "hooks" in group:
        return group["hooks"] if isinstance(group["hooks"], list) else []
    return [group]


def _at(said: Any, path: Place) -> Any:
    for key in path:
        if isinstance(key, int):
            said = said[key]
        elif not isinstance(said, dict):
            raise ByHand(f"{'.'.join(map(str, path))} leads into something that is no object")
        elif key not in said:
            return _NOTHING
        else:
            said = said[key]
    return said


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) != len(pairs):
        raise ValueError("a key is there twice")
    return said


def _check(kind: _Kind, file: File, before: dict[str, Any], after: str) -> dict[str, Any]:
    """Return what a changed text says, if that is what it said before but for what is ours."""
    try:
        said = kind.read(after)
    except ByHand:
        raise ByHand(_RISKY) from None
    if _others(file, before) != _others(file, said):
        raise ByHand(_RISKY)
    return said


def _subjects(file: File, said: dict[str, Any]) -> set[str]:
    """Return whose the entries are that are ours."""
    ours = (_at(said, place) for entry in file.entries for place in _ours(said, entry))
    return {str(subject_of(one)) for found in ours for one in _handlers(found)}


def _added(file: File, said: dict[str, Any]) -> dict[Place, Any]:
    """Return what people have added to our servers."""
    servers = [one for one in file.entries if isinstance(one, Server) and any(_ours(said, one))]
    return {
        (*one.path, key): value for one in servers for key, value in _at(said, one.path).items() if key not in one.value
    }


def _others(file: File, said: dict[str, Any]) -> Any:
    """Return what a document says without what is ours."""
    said = copy.deepcopy(said)
    for entry in file.entries:
        while place := next(_ours(said, entry), None):
            holder = _at(said, place[:-1])
            del holder[place[-1]]
    return _without_empty({key: value for key, value in said.items() if file.frame.get(key) != value})


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(one) for key, one in value.items()}
        return {key: one for key, one in kept.items() if one not in ({}, [])}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value

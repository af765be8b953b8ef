"""Add our entries to the text of a configuration file, or remove them: text in, text out.

1. Everything that is not ours stays, byte for byte. A text that is not plain JSON or TOML (comments, a trailing comma,
   a duplicate key), or that has another value where our entry belongs, is not changed: `ByHand` has the reason.
2. Adding is idempotent. An entry for another subject is replaced and reported. Keys that a person has added to our
   server's entry, such as a variable, are kept.
3. The result is parsed again: without our entries it must equal the original document.
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
_RISKY = "its formatting cannot be changed without a risk to the rest of the file"


class ByHand(Exception):
    """The text cannot be changed safely; the message is the reason."""


class Edited(NamedTuple):
    """The result of an edit."""

    text: str
    places: list[str]
    """The changed paths, for people; none if nothing changed."""
    empty: bool = False
    """True if nothing meaningful is left in the file."""
    replaced: Sequence[str] = ()
    """The subjects whose entries were replaced."""


def put(file: File, text: str) -> Edited:
    """Add our entries to a text.

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
    document = _check(kind, file, before, after)
    if _added(file, before) != _added(file, document):
        raise ByHand(_RISKY)
    return Edited(after, places, replaced=sorted(_subjects(file, before) - _subjects(file, document)))


def take(file: File, text: str, subject: str) -> Edited:
    """Remove the entries of a subject from a text.

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
    is_empty = not (left.keys() - file.frame.keys())
    return Edited(after, places, empty=is_empty and (kind is _Json or not after.strip()))  # TOML may have comments


class _Json:
    empty = "{}\n"
    put = staticmethod(json_text.put)
    take = staticmethod(json_text.take)

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        try:
            document = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ByHand(f"it is not plain JSON ({error})") from None
        if not isinstance(document, dict):
            raise ByHand("it is not a JSON object")
        return document


class _Toml:
    empty = ""

    @staticmethod
    def put(text: str, path: Place, value: Any) -> str:
        return toml_text.put(text, ".".join(map(str, path)), value)

    @staticmethod
    def take(text: str, path: Place) -> str:
        changed = toml_text.take(text, ".".join(map(str, path)))
        if changed == text:
            raise ByHand("the table is not written as [table] with its keys below")
        return changed

    @staticmethod
    def read(text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ByHand(f"it is not valid TOML ({error})") from None


_Kind = type[_Json] | type[_Toml]


def _put_server(kind: _Kind, text: str, entry: Server) -> str:
    found = _at(kind.read(text), entry.path)
    if found is _NOTHING:
        return kind.put(text, entry.path, entry.value)
    if subject_of(found) is None:
        raise ByHand(f"{'.'.join(entry.path)} is an entry that is not Relay's")
    command = {key: entry.value[key] for key in ("command", "args") if key in entry.value}
    if command.items() <= found.items():
        return text
    return kind.put(text, entry.path, {**entry.value, **found, **command})


def _put_hook(kind: _Kind, text: str, entry: Hook) -> str:
    document = kind.read(text)
    found = list(_ours(document, entry))
    commands = [handler["command"] for place in found for handler in _handlers(_at(document, place))]
    if commands == [handler["command"] for handler in _handlers(entry.value)]:
        return text
    for place in reversed(found):
        text = kind.take(text, place)
    return kind.put(text, (*entry.path, json_text.APPEND), entry.value)


def _ours(document: dict[str, Any], entry: Server | Hook, subject: str | None = None) -> Iterator[Place]:
    """Yield the places of our entries under an entry's path: a whole group of hooks if all of them are ours."""

    def is_ours(value: Any) -> bool:
        found = subject_of(value)
        return found is not None and subject in (None, found)

    value = _at(document, entry.path)
    if isinstance(entry, Server):
        if is_ours(value):
            yield entry.path
        return
    if value is _NOTHING:
        return
    if not isinstance(value, list):
        raise ByHand(f"{'.'.join(entry.path)} is not a list")
    for at, group in enumerate(value):
        handlers = _handlers(group)
        ours = [number for number, handler in enumerate(handlers) if is_ours(handler)]
        if ours and len(ours) == len(handlers):
            yield (*entry.path, at)
            continue
        for number in ours:
            yield (*entry.path, at, "hooks", number)


def _handlers(group: Any) -> list[Any]:
    if isinstance(group, dict) and "hooks" in group:
        return group["hooks"] if isinstance(group["hooks"], list) else []
    return [group]


def _at(value: Any, path: Place) -> Any:
    for key in path:
        if isinstance(key, str):
            if not isinstance(value, dict):
                raise ByHand(f"{'.'.join(map(str, path))} leads into a value that is not an object")
            if key not in value:
                return _NOTHING
        value = value[key]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document


def _check(kind: _Kind, file: File, before: dict[str, Any], after: str) -> dict[str, Any]:
    """Return the document of a changed text, if it equals the one before except for our entries."""
    try:
        document = kind.read(after)
    except ByHand:
        raise ByHand(_RISKY) from None
    if _others(file, before) != _others(file, document):
        raise ByHand(_RISKY)
    return document


def _subjects(file: File, document: dict[str, Any]) -> set[str]:
    """Return the subjects of our entries."""
    ours = (_at(document, place) for entry in file.entries for place in _ours(document, entry))
    return {str(subject_of(handler)) for found in ours for handler in _handlers(found)}


def _added(file: File, document: dict[str, Any]) -> dict[Place, Any]:
    """Return the keys that people have added to our servers."""
    servers = [entry for entry in file.entries if isinstance(entry, Server) and any(_ours(document, entry))]
    return {
        (*server.path, key): value
        for server in servers
        for key, value in _at(document, server.path).items()
        if key not in server.value
    }


def _others(file: File, document: dict[str, Any]) -> Any:
    """Return a document without our entries."""
    document = copy.deepcopy(document)
    for entry in file.entries:
        while place := next(_ours(document, entry), None):
            del _at(document, place[:-1])[place[-1]]
    return _without_empty({key: value for key, value in document.items() if file.frame.get(key) != value})


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in kept.items() if part not in ({}, [])}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value

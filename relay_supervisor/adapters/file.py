"""adapters.json: the adapters that an operator configures, parsed entry by entry.

::

    {"adapters": [{"id": "tg", "type": "telegram", "enabled": true, "config": {...}, "rate": 5},
                  {"id": "mine", "path": "plugins/mine.py", "config": {...}}],
     "bindings": [{"chat": "relay.human.telegram.tg.*", "agent": "relay.agent.backend", "start": "chat"}]}

1. A missing file means no adapters. A file that cannot be read, is not JSON or has no list of adapters has no entries
   (`entries` is None): the running adapters are kept.
2. An invalid entry has a `problem` and does not affect the others. Without a valid id that no earlier entry uses, it
   goes by its position in the list, such as ``#2``.
3. A problem names keys, never the values of a config, which may be secrets. No repr shows them either.
4. An invalid binding is named in the file's `problem` and does not affect the others either.
5. Enabling or disabling an entry changes nothing else: invalid entries, unknown keys, bindings and the order of
   everything stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from relay_core.config import explain_unknown
from relay_core.errors import ConfigError, NotFound
from relay_core.messages.base import first_problem
from relay_core.messages.subjects import adapter_subject, is_subject
from relay_core.rules.bindings import Binding
from relay_core.storage.atomic_file import FileReader, atomic_write
from relay_core.storage.trusted_file import UntrustedFile, read_trusted
from relay_supervisor.adapters.settings import SETTINGS_KEYS, OperatorSettings

_FILE_KEYS = ["adapters", "bindings"]
_ENTRY_KEYS = ["id", "type", "path", "enabled", "config", *SETTINGS_KEYS]


@dataclass(frozen=True, slots=True)
class Entry:
    """An adapter as the file describes it."""

    id: str
    type: str | None = None
    """The name of a built-in or installed type."""
    path: str | None = None
    """Or the Python file that defines it."""
    enabled: bool = True
    config: dict[str, Any] = field(default_factory=dict, repr=False)
    settings: OperatorSettings = field(default_factory=OperatorSettings)
    problem: str | None = None
    """The reason why it cannot be used."""
    position: int = field(default=0, compare=False)
    """Its index in the list."""

    @property
    def source(self) -> str:
        """Return the type as an operator wrote it."""
        return self.type or self.path or ""


@dataclass(frozen=True, slots=True)
class AdaptersFile:
    """The contents of the file."""

    entries: tuple[Entry, ...] | None
    """None if the file cannot be used."""
    problem: str | None = None
    bindings: tuple[Binding, ...] = ()


def read_adapters(path: Path, read: FileReader = read_trusted) -> AdaptersFile:
    """Parse the file; blocks, and raises nothing."""
    try:
        return _interpret(_load(path, read), path)
    except ConfigError as error:
        return AdaptersFile(None, error.message)


def set_enabled(path: Path, adapter_id: str, enabled: bool, read: FileReader = read_trusted) -> None:
    """Enable or disable an entry, durably; blocks.

    Raises:
        NotFound: if there is no such entry.
        ConfigError: if the file or the entry cannot be edited.
        StorageError: if the file cannot be written.
    """
    document = _load(path, read)
    file = _interpret(document, path)
    if file.entries is None:
        raise ConfigError(file.problem or "", path=str(path))
    entry = next((entry for entry in file.entries if entry.id == adapter_id), None)
    if entry is None:
        raise unknown_adapter(adapter_id, [entry.id for entry in file.entries])
    found = document["adapters"][entry.position]
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: entry {adapter_id} is not an object: correct it by hand", path=str(path))
    if found.get("enabled", True) is enabled:
        return
    found["enabled"] = enabled
    atomic_write(path, _dump(document))


def unknown_adapter(adapter_id: str, known: Iterable[str]) -> NotFound:
    """Return the error for an id that no entry has; it lists the known ones."""
    there = ", ".join(sorted(known)) or "none"
    return NotFound(f"no adapter {adapter_id} in adapters.json; there are: {there}", what=adapter_id)


def _load(path: Path, read: FileReader) -> dict[str, Any]:
    try:
        document = json.loads(read(path).decode(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    except UntrustedFile as error:
        raise ConfigError(str(error), path=str(path)) from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply", path=str(path)) from None
    except ValueError as error:
        # Not chained: a JSONDecodeError carries the whole document.
        raise ConfigError(f"{path} is not JSON: {error}", path=str(path)) from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold one JSON object", path=str(path))
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _dump(document: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a surrogate pair, which needs an escape
        return (json.dumps(document, indent=2) + "\n").encode()


def _interpret(document: dict[str, Any], path: Path) -> AdaptersFile:
    unknown = next((key for key in document if key not in _FILE_KEYS), None)
    problems = [explain_unknown(unknown, _FILE_KEYS)] if unknown is not None else []
    adapters = document.get("adapters", [] if unknown is None else None)
    if not isinstance(adapters, list):
        return AdaptersFile(None, f"{path}: {problems[0] if problems else 'adapters must be a list'}")
    bindings = _read_bindings(document.get("bindings", []), problems)
    problem = f"{path}: {'; '.join(problems)}" if problems else None
    return AdaptersFile(tuple(_read_entries(adapters)), problem, bindings)


def _read_bindings(found: Any, problems: list[str]) -> tuple[Binding, ...]:
    """Return the valid bindings, and add a problem for each invalid one."""
    if not isinstance(found, list):
        problems.append("bindings must be a list")
        return ()
    bindings = []
    for position, binding in enumerate(found, 1):
        try:
            bindings.append(Binding.model_validate(binding))
        except ValidationError as error:
            where, problem = first_problem(error)
            text = f"{where}: {problem}" if where else "it must be an object"
            problems.append(f"binding #{position} is left out: {text}")
    return tuple(bindings)


def _read_entries(adapters: list[Any]) -> Iterable[Entry]:
    taken: dict[str, int] = {}
    for position, found in enumerate(adapters):
        place = f"#{position + 1}"
        if not isinstance(found, dict):
            yield Entry(place, problem="an entry must be an object", position=position)
            continue
        id, problem = found.get("id"), _find_problem(found)
        settings, unusable = _read_settings(found)
        problem = problem or unusable
        if not isinstance(id, str) or "." in id or not is_subject(adapter_subject(id)):
            id, problem = place, "id must be one subject token: letters, digits, '_' and '-'"
        elif id in taken:
            id, problem = place, f"the id {id} is taken by entry #{taken[id] + 1}"
        else:
            taken[id] = position
        yield Entry(
            id,
            type=_text(found.get("type")),
            path=_text(found.get("path")),
            enabled=found.get("enabled", True) is not False,
            config=config if isinstance(config := found.get("config", {}), dict) else {},
            settings=settings,
            problem=problem,
            position=position,
        )


def _read_settings(found: dict[str, Any]) -> tuple[OperatorSettings, str | None]:
    """Return an entry's settings, or the defaults and the problem."""
    try:
        return OperatorSettings.model_validate({key: found[key] for key in SETTINGS_KEYS if key in found}), None
    except ValidationError as error:
        return OperatorSettings(), ": ".join(first_problem(error))


def _find_problem(found: dict[str, Any]) -> str | None:
    for key in found:
        if key not in _ENTRY_KEYS:
            return explain_unknown(key, _ENTRY_KEYS)
    if ("type" in found) == ("path" in found):
        return "an entry must have either a type or a path to a Python file"
    key = "type" if "type" in found else "path"
    if not _text(found[key]):
        return f"{key} must be text, and not empty"
    if not isinstance(found.get("enabled", True), bool):
        return "enabled must be true or false"
    if not isinstance(found.get("config", {}), dict):
        return "config must be an object"
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

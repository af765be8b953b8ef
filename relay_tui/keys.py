"""The operator's own keys: a TOML file of action names and keys, read at the start.

::

    # ~/.config/relay/keys.toml
    plan = "f9"
    quit = "ctrl+x"
    purge = ""          # no key at all

A mistake in it is told and leaves the keys as they are: the file never keeps the dashboard from opening.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from relay_tui.actions import Action, conflicts, rebound
from relay_tui.own_places import config_dir, expanded

_KEY = re.compile(r"|\S|((ctrl|shift|alt)\+)*([a-z0-9]|[a-z][a-z0-9_]+)")


def keys_path() -> Path:
    """Return where the file is: RELAY_KEYS, else in the operator's configuration directory."""
    chosen = os.environ.get("RELAY_KEYS")
    return expanded(chosen) if chosen else config_dir() / "keys.toml"


def read_keys(path: Path, actions: list[Action]) -> tuple[dict[str, str], list[str]]:
    """Return the keys that the file gives to actions, and what is wrong with it."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [f"{path}: {error}"]
    known = {one.name for one in actions}
    problems = [f"{path}: there is no action {name!r}" for name in found if name not in known]
    problems += [f"{path}: {name} needs a key in quotes" for name, key in found.items() if not isinstance(key, str)]
    keys = {name: _named(key) for name, key in found.items() if name in known and isinstance(key, str)}
    for name in [name for name, key in keys.items() if not _KEY.fullmatch(key)]:
        problems.append(f"{path}: {keys.pop(name)!r} is no key: one character, or a name such as f2, enter or ctrl+x")
    if clashes := list(conflicts([rebound(one, keys) for one in actions])):
        return {}, [*problems, *(f"{path}: {clash}" for clash in clashes)]
    return keys, problems


def _named(key: str) -> str:
    """Return a key as it is called here: a character as it is, a name in small letters."""
    return "space" if key == " " else key if len(key) < 2 else key.lower()

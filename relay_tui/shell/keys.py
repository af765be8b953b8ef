"""The operator's key file: TOML with action names and keys, read at the start.

::

    # ~/.config/relay/keys.toml
    plan = "f9"
    quit = "ctrl+x"
    purge = ""          # no key at all

A mistake is reported and changes no key: the file never prevents a start.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from relay_tui.shell.actions import Action, conflicts, rebound
from relay_tui.user_files import config_dir, expanded

_KEY = re.compile(r"|\S|((ctrl|shift|alt)\+)*([a-z0-9]|[a-z][a-z0-9_]+)")


def keys_path() -> Path:
    """Return the path of the key file: RELAY_KEYS, else in the operator's configuration directory."""
    chosen = os.environ.get("RELAY_KEYS")
    return expanded(chosen) if chosen else config_dir() / "keys.toml"


def read_keys(path: Path, actions: list[Action]) -> tuple[dict[str, str], list[str]]:
    """Return the keys of the file by action name, and its problems."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [f"{path}: {error}"]
    known = {action.name for action in actions}
    problems = [f"{path}: there is no action {name!r}" for name in found if name not in known]
    problems += [f"{path}: {name} needs a key in quotes" for name, key in found.items() if not isinstance(key, str)]
    keys = {name: _named(key) for name, key in found.items() if name in known and isinstance(key, str)}
    for name in [name for name, key in keys.items() if not _KEY.fullmatch(key)]:
        problems.append(
            f"{path}: {keys.pop(name)!r} is not a key: write one character, or a name such as f2, enter or ctrl+x"
        )
    if clashes := list(conflicts([rebound(action, keys) for action in actions])):
        return {}, [*problems, *(f"{path}: {clash}" for clash in clashes)]
    return keys, problems


def _named(key: str) -> str:
    """Return a key as actions name it: a character unchanged, a name in lower case."""
    return "space" if key == " " else key if len(key) < 2 else key.lower()

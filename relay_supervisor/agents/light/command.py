"""What `relay mcp` and `relay hook` share: how they are called, and how they say what is wrong."""

from __future__ import annotations

import os

from relay_core.text.invisible import escape_invisible

_NAMES = {"--as": "subject", "--data-dir": "data_dir", "--socket": "socket", "--token": "token"}
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Misused(Exception):
    """The command was called wrongly; the text says how."""


class Options:
    """What the command line says."""

    def __init__(self) -> None:
        self.subject = ""
        self.data_dir: str | None = None
        self.socket: str | None = None
        self.token: str | None = None
        self.word: str | None = None
        """What stands there beside the options."""


def read_options(args: list[str], words: tuple[str, ...] = ()) -> Options:
    """Return what a command line says: options, and one of some words, in any order.

    Raises:
        Misused: if something is too much, or missing.
    """
    options = Options()
    rest = iter(args)
    for one in rest:
        name, has_value, value = one.partition("=")
        if name in _NAMES:
            given = value if has_value else next(rest, "")
            if not given:
                raise Misused(f"{name} needs a value")
            setattr(options, _NAMES[name], given)
        elif one in words and options.word is None:
            options.word = one
        else:
            raise Misused(f"{one!r} means nothing here")
    if not _is_subject(options.subject):
        raise Misused("--as needs the subject of the agent, such as relay.agent.writer")
    return options


def say(command: str, text: str) -> None:
    """Write one line to stderr, if anybody listens there."""
    line = " ".join(escape_invisible(text).split())
    try:
        os.write(2, f"relay {command}: {line}\n".encode(errors="replace"))
    except OSError:
        return


def _is_subject(text: str) -> bool:
    return len(text) <= 255 and all(part and set(part) <= _LETTERS for part in text.split("."))

"""The options of `relay mcp` and `relay hook`, and their error line."""

from __future__ import annotations

import os

from relay_core.text.invisible import escape_invisible

_NAMES = {"--as": "subject", "--data-dir": "data_dir", "--socket": "socket", "--token": "token"}
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Misused(Exception):
    """Invalid arguments; the message says which."""


class Options:
    """The parsed command line."""

    def __init__(self) -> None:
        self.subject = ""
        self.data_dir: str | None = None
        self.socket: str | None = None
        self.token: str | None = None
        self.word: str | None = None
        """The positional argument."""


def read_options(args: list[str], words: tuple[str, ...] = ()) -> Options:
    """Parse a command line: options, and at most one of some words, in any order.

    Raises:
        Misused: if an argument is unknown or missing.
    """
    options = Options()
    rest = iter(args)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if name in _NAMES:
            given = value if has_value else next(rest, "")
            if not given:
                raise Misused(f"{name} needs a value")
            setattr(options, _NAMES[name], given)
        elif argument in words and options.word is None:
            options.word = argument
        else:
            raise Misused(f"unexpected argument {argument!r}")
    if not _is_subject(options.subject):
        raise Misused("--as needs the agent's subject, such as relay.agent.writer")
    return options


def say(command: str, text: str) -> None:
    """Print one line on stderr, if it is open."""
    line = " ".join(escape_invisible(text).split())
    try:
        os.write(2, f"relay {command}: {line}\n".encode(errors="replace"))
    except OSError:
        return


def _is_subject(text: str) -> bool:
    return len(text) <= 255 and all(part and set(part) <= _LETTERS for part in text.split("."))

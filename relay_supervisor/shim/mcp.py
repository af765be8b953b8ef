"""``relay mcp --as relay.agent.NAME``: the bus for an agent that speaks MCP, over stdin and stdout.

1. Every session of an agent starts one, so it is there at once and stays small: see the package.
2. The connection to the supervisor is begun at the start, and nothing waits for it: a client gets the list of tools
   whether there is a supervisor or not, and a tool that needs one says what is wrong.
3. The parts: session.py (the loop), mcp_protocol.py (what the client says), tools.py (what a model sees), sending.py
   and reading.py (what the tools do), upstream.py (the supervisor), handled.py (the loop guard), fence.py (what
   others have written).
"""

from __future__ import annotations

import signal
import sys
import time

from relay_supervisor.shim import TYPE_CHECKING
from relay_supervisor.shim.line import Address, Unreachable, find_token
from relay_supervisor.shim.session import Session

if TYPE_CHECKING:
    from typing import Any

USAGE = "relay mcp --as SUBJECT [--data-dir DIR] [--socket PATH] [--token TOKEN]"
_OPTIONS = ("--as", "--data-dir", "--socket", "--token")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class _Usage(Exception):
    """It was called wrongly."""


def main(args: list[str]) -> int:
    """Run the server with the arguments of the command line, and return the exit code."""
    try:
        given = _parse(args)
    except _Usage as error:
        _say(f"{error} (usage: {USAGE})")
        return 2
    return serve(given["--as"], given.get("--data-dir"), given.get("--socket"), given.get("--token"))


def serve(subject: str, data_dir: str | None = None, socket: str | None = None, token: str | None = None) -> int:
    """Serve the client on stdin and stdout, and return the exit code."""
    address = Address.find(data_dir, socket)
    try:
        find_token(address, subject, token)
    except Unreachable as error:
        _say(str(error))  # for whoever looks into the log; the tools say it to the model
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    session = Session(address, subject, token, monotonic=time.monotonic, now_ms=_now_ms)
    try:
        session.run()
    except BrokenPipeError:
        return 0  # the client has gone
    return 0


def is_subject(text: str) -> bool:
    """Tell whether a text can be an agent's subject."""
    return len(text) <= 255 and all(part and set(part) <= _LETTERS for part in text.split("."))


def _parse(args: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    rest = iter(args)
    for one in rest:
        name, has_value, value = one.partition("=")
        if name not in _OPTIONS:
            raise _Usage(f"unknown argument {one!r}")
        given[name] = value if has_value else next(rest, "")
        if not given[name]:
            raise _Usage(f"{name} needs a value")
    if not is_subject(given.get("--as", "")):
        raise _Usage("--as needs the subject of the agent, such as relay.agent.writer")
    return given


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _say(text: str) -> None:
    sys.stderr.write(f"relay mcp: {text}\n")

"""``relay mcp --as relay.agent.NAME``: the bus for an agent that speaks MCP, over stdin and stdout.

1. Every session of an agent starts one, so it is there at once and stays small: see the package.
2. The connection to the supervisor is begun at the start, and nothing waits for it: a client gets the list of tools
   whether there is a supervisor or not, and a tool that needs one says what is wrong.
3. The parts: session.py (the loop), protocol.py (what the client says), tools.py (what a model sees), sending.py
   and reading.py (what the tools do), upstream.py (the supervisor), handled.py (the loop guard), fence.py (what
   others have written), command.py (what it has in common with `relay hook`).
"""

from __future__ import annotations

import os
import signal
import time

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.command import Misused, read_options, say
from relay_supervisor.agents.light.sync_connection import Address, Unreachable, find_token
from relay_supervisor.agents.mcp.session import Session

if TYPE_CHECKING:
    from typing import Any

USAGE = "relay mcp --as SUBJECT [--data-dir DIR] [--socket PATH] [--token TOKEN]"


def main(args: list[str]) -> int:
    """Run the server with the arguments of the command line, and return the exit code."""
    try:
        options = read_options(args)
    except Misused as error:
        say("mcp", f"{error} (usage: {USAGE})")
        return 2
    for standard in (0, 1):  # else the socket would get the number, and be taken for the client
        try:
            os.fstat(standard)
        except OSError:
            say("mcp", "stdin and stdout must be open: an agent starts this and speaks MCP with it")
            return 2
    address = Address.find(options.data_dir, options.socket)
    try:
        find_token(address, options.subject, options.token)
    except Unreachable as error:
        say("mcp", str(error))  # for whoever looks into the log; the tools say it to the model
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    session = Session(address, options.subject, options.token, monotonic=time.monotonic, now_ms=_now_ms)
    try:
        session.run()
    except BrokenPipeError:
        return 0  # the client has gone
    return 0


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

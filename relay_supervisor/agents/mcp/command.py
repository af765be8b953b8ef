"""``relay mcp --as relay.agent.NAME``: an MCP server for an agent, on stdin and stdout.

1. It connects to the supervisor at the start, but nothing waits for the connection: a client always gets the list of
   tools, and a tool that needs a supervisor reports the problem.
2. The parts: session.py (the loop), protocol.py (MCP), tools.py (the tools' schemas), sending.py and reading.py (the
   tools), and in `light`: upstream.py (the supervisor), handled.py (the loop guard), fence.py (untrusted text).
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
    for standard in (0, 1):  # otherwise the socket would get that number and be taken for the client
        try:
            os.fstat(standard)
        except OSError:
            say("mcp", "stdin and stdout must be open: an MCP client starts this command")
            return 2
    address = Address.find(options.data_dir, options.socket)
    try:
        find_token(address, options.subject, options.token)
    except Unreachable as error:
        say("mcp", str(error))  # for the client's log; the tools report it to the model
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    session = Session(address, options.subject, options.token, monotonic=time.monotonic, now_ms=_now_ms)
    try:
        session.run()
    except BrokenPipeError:
        return 0  # the client is gone
    return 0


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""The case of `relay mcp`, which every session of an agent starts: how soon it answers, and its memory.

1. The time is from starting the process to the answer to `initialize`, and to the answer of a tool that asks the
   supervisor. The base is `python -c pass` before and after it, the quickest possible start.
2. Bytecode is cached, as in an installation, in a separate directory.
3. The memory is that of the process during a session, after a call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import NamedTuple

from benchmarks.harness import Bench, Cases, Goal, Result
from benchmarks.rig.daemon import supervisor
from benchmarks.rig.servers import memory_mb
from relay_core.client.client import RelayClient

AGENT = "relay.agent.bench"
_INFO = {"name": "bench", "version": "1"}
_INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _INFO}
_INPUT = b"".join(
    json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"
    for id, method, params in [
        (0, "initialize", _INITIALIZE),
        (1, "tools/call", {"name": "relay_inbox", "arguments": {}}),
    ]
)


class Start(NamedTuple):
    """One start: milliseconds and megabytes."""

    python: float
    initialize: float
    call: float
    memory: float


def start(bench: Bench, name: str, *, most: float, ratio: float, memory: float) -> Iterable[Result]:
    """Start sessions one after the other."""

    async def starts() -> list[Start]:
        directory = bench.fresh()
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RELAY_", "PYTHON"))}
        environment["PYTHONPYCACHEPREFIX"] = str(bench.fresh())
        async with supervisor(directory) as daemon:
            async with RelayClient(daemon.socket) as client:
                await client.call("agents.add", {"subject": AGENT})
            relay = str(Path(sys.executable).parent / "relay")
            places = ("--data-dir", str(directory), "--socket", str(daemon.socket))
            command = [relay, "mcp", "--as", AGENT, *places]
            _session(command, environment)  # fills the cache
            return [_measure(command, environment) for _ in range(max(bench.rounds, 20))]

    rounds = bench.run(starts())
    python = median(start.python for start in rounds)
    yield Goal(name, "call", "ms", "most", most).result([start.call for start in rounds], python_ms=python)
    initialize = Goal(name, "initialize", "x", "most", ratio)
    took = median(start.initialize for start in rounds)
    yield initialize.result([start.initialize / start.python for start in rounds], python_ms=python, relay_ms=took)
    yield Goal(name, "rss", "MB", "most", memory).result([start.memory for start in rounds])


def _measure(command: list[str], environment: dict[str, str]) -> Start:
    before = _bare(environment)
    initialize, call, memory = _session(command, environment)
    return Start(mean([before, _bare(environment)]), initialize, call, memory)


def _bare(environment: dict[str, str]) -> float:
    begin = perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    return (perf_counter() - begin) * 1e3


def _session(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    begin = perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_INPUT)
        process.stdin.flush()
        process.stdout.readline()
        initialize = (perf_counter() - begin) * 1e3
        answer = process.stdout.readline()
        call = (perf_counter() - begin) * 1e3
        if b"0 messages." not in answer:
            raise RuntimeError(f"unexpected answer: {answer!r}")
        return initialize, call, memory_mb(process.pid)


MCP_CASES: Cases = {
    "mcp_start": partial(start, most=60, ratio=4, memory=20),
}

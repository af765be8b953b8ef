"""The case of `relay hook`, which agents start again and again: it must be quick and small.

The base is `python -c pass`, the quickest possible start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.harness import Bench, Cases, Goal, Result
from benchmarks.rig.daemon import Daemon, supervisor
from relay_core.client.client import RelayClient

AGENT = "relay.agent.bench"
_INPUT = json.dumps({"hook_event_name": "UserPromptSubmit", "session_id": "bench", "prompt": "go on"}).encode()
_PEAK = (
    "import os, sys; pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]);"
    "print(os.wait4(pid, 0)[2].ru_maxrss / 1024)"
)
"""Start a command and print its peak memory. A small process does so, because its own memory counts before exec."""


def hook(bench: Bench, name: str, *, most: float, memory: float) -> Iterable[Result]:
    """Run `relay hook` at a prompt without waiting messages, against `python -c pass`."""

    async def relay() -> tuple[list[float], list[float], list[float]]:
        directory = bench.fresh()
        async with supervisor(directory) as daemon:
            async with RelayClient(daemon.socket) as client:
                await client.add_agent(AGENT)
            bare = [sys.executable, "-c", "pass"]
            command = _relay(daemon, directory, "hook")
            _timed(command)
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(max(bench.rounds, 20)):
                times[0].append(_timed(bare))
                times[1].append(_timed(command))
            return *times, [_peak_mb(command) for _ in range(3)]

    bare, hooks, peaks = bench.run(relay())
    details = {"python_ms": median(bare), "over_python_ms": median(hooks) - median(bare)}
    yield Goal(name, "time", "ms", "most", most).result(hooks, **details)
    yield Goal(name, "rss", "MB", "most", memory).result(peaks)


def _relay(daemon: Daemon, directory: Path, verb: str) -> list[str]:
    command = Path(sys.executable).parent / "relay"
    return [str(command), verb, "--as", AGENT, "--data-dir", str(directory), "--socket", str(daemon.socket)]


def _timed(command: list[str]) -> float:
    """Return how long a command takes, in milliseconds; it must print nothing."""
    begin = perf_counter()
    ran = subprocess.run(command, input=_INPUT, capture_output=True, check=True, env=_environment())
    took = (perf_counter() - begin) * 1e3
    if ran.stdout or ran.stderr:
        raise RuntimeError(f"unexpected output: {ran.stdout!r} {ran.stderr!r}")
    return took


def _peak_mb(command: list[str]) -> float:
    peak = [sys.executable, "-S", "-c", _PEAK, *command]
    return float(subprocess.run(peak, input=_INPUT, capture_output=True, check=True, env=_environment()).stdout)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("RELAY_")}


AGENT_CASES: Cases = {
    "hook": partial(hook, most=60, memory=20),
}

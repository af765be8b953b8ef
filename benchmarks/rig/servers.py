"""Processes that a benchmark starts, which never outlive it, and their cost.

1. A server ends with the block that started it, by SIGTERM, and by SIGKILL if necessary.
2. If the process that started it is killed, the kernel kills the server (PR_SET_PDEATHSIG; only on Linux).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1
_READY_SECS = 60.0
_STOP_SECS = 20.0


def tied(by: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a preexec function that has the child signalled when its parent is gone."""
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def tie() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return tie


@contextmanager
def server(command: Sequence[str | Path], cwd: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server without output."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=cwd, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=tied())
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int | str, field: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
    """Return the resident memory of a process, or its peak (VmHWM)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status[field].split()[0]) / 1024


async def until_ready(process: subprocess.Popen[bytes], is_ready: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a server is ready.

    Raises:
        RuntimeError: if it has ended instead.
    """
    async with asyncio.timeout(_READY_SECS):
        while not await is_ready():
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
            await asyncio.sleep(0.02)

"""Processes that a benchmark starts, which never outlive it, and what they cost.

1. A server ends with the block that started it, by SIGTERM, and by SIGKILL if that is not enough.
2. If the process that started it is itself killed, the kernel kills the server (PR_SET_PDEATHSIG; Linux alone).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STOP_SECS = 20.0


def tied(by: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return what a child calls first, to be sent a signal when its parent is gone."""
    parent = os.getpid()
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def tie() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(by), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return tie


@contextmanager
def server(command: Sequence[str | Path], cwd: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, whose own words go nowhere."""
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
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the memory that a process holds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024

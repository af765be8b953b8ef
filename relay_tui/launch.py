"""Start a supervisor from the dashboard: a separate process that keeps running when the dashboard exits."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from relay_core.text.sanitize import clean

if TYPE_CHECKING:
    from relay_core.client.client import RelayClient

_POLL_SECS = 0.1
_POLLS = 100
_TAIL_BYTES = 8192


def start_supervisor(client: RelayClient) -> tuple[int, Path]:
    """Start a supervisor at the client's socket; return its process id and the path of its log.

    Raises:
        OSError: if it cannot be started, or its directory cannot be created.
    """
    data_dir = client.data_dir
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / "supervisor.log"
    command = [sys.executable, "-m", "relay_supervisor", "run"]
    # Not subprocess: it warns about a child process that is still running.
    process = os.posix_spawn(
        sys.executable,
        [*command, "--data-dir", str(data_dir), "--socket", str(client.path)],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return process, log


async def exit_reason(process: int, log: Path, client: RelayClient) -> str | None:
    """Return the last log line of a supervisor that exits before it responds; None if it responds or times out."""
    for _ in range(_POLLS):
        if client.connected:
            return None
        if _has_exited(process):
            return _last_line(log)
        await asyncio.sleep(_POLL_SECS)
    return None


def _has_exited(process: int) -> bool:
    return os.waitpid(process, os.WNOHANG)[0] != 0


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
        return last_log_line(file.read()) or "its log is empty"


def last_log_line(log: bytes) -> str:
    """Return the last line of a log, or its `event` if it is JSON: the reason of an exit is there."""
    line = log.decode(errors="replace").strip().rpartition("\n")[2]
    with suppress(ValueError, TypeError, KeyError):
        line = str(json.loads(line)["event"])
    return clean(line)

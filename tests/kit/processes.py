"""Processes and ports, as tests look at them."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Return True if a process has ended; a zombie has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (ProcessLookupError, FileNotFoundError):
        return True


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port

"""Tell systemd how the supervisor is doing: the sd_notify protocol, one datagram a message.

No package: the protocol is a handful of `NAME=value` lines in one datagram.

1. Without NOTIFY_SOCKET every call does nothing. The variable stays set for children: the unit says
   `NotifyAccess=main`, so what they might send is ignored.
2. Nothing here ever blocks or raises: a service manager that does not listen costs only its own news.
3. The watchdog is ours only if WATCHDOG_PID names this process, or nobody.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Send the service manager our state."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environ)

    def ready(self, status: str) -> None:
        """Say that the supervisor is up, or that it has reloaded."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` ends it."""
        # systemd compares with its own monotonic clock, so an injected one would be wrong.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the supervisor is going down."""
        self._send("STOPPING=1", _status("stopping"))

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(_status(text))

    def watchdog(self) -> None:
        """Say that the event loop still turns."""
        self._send("WATCHDOG=1")

    def watchdog_interval(self) -> float | None:
        """Return the seconds between two calls of `watchdog`, half of what is allowed; None if nobody waits."""
        return self._watchdog if self._address is not None else None

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A socket for each message: it never refers to a manager that has been replaced meanwhile.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(errors="replace"), self._address)


def _address(path: str) -> str | None:
    if path.startswith("@"):
        return "\0" + path[1:]
    return path if path.startswith("/") else None


def _watchdog(environ: Mapping[str, str]) -> float | None:
    try:
        micros = int(environ["WATCHDOG_USEC"])
        pid = int(environ.get("WATCHDOG_PID") or os.getpid())
    except (KeyError, ValueError):
        return None
    return micros / 2e6 if micros > 0 and pid == os.getpid() else None


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.splitlines()).replace("\0", " ")

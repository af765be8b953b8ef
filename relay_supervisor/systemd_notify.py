"""Notify systemd of the supervisor's state: the sd_notify protocol, with `NAME=value` lines in one datagram.

1. Without NOTIFY_SOCKET every call does nothing. The variable stays set for children: the unit has `NotifyAccess=main`,
   so their notifications are ignored.
2. Nothing here blocks or raises: if the service manager does not listen, notifications are lost.
3. The watchdog is active only if WATCHDOG_PID is unset or names this process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Send the supervisor's state to the service manager."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog(environ)

    def ready(self, status: str) -> None:
        """Report that the supervisor has started or reloaded."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """Report that the configuration is being reloaded; `ready` ends it."""
        # Not the injected clock: systemd compares with the system's monotonic clock.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the supervisor is stopping."""
        self._send("STOPPING=1", _status("stopping"))

    def status(self, text: str) -> None:
        """Set the status line of `systemctl status`."""
        self._send(_status(text))

    def watchdog(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def watchdog_interval(self) -> float | None:
        """Return the seconds between calls of `watchdog`, half of the limit; None if there is no watchdog."""
        return self._watchdog if self._address is not None else None

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A new socket for each message, since the manager may have been replaced.
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

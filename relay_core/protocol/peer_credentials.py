"""The user and the process on the other end of a Unix socket, as reported by the kernel.

A server checks its clients. A client checks the server before it sends anything: a process that can place a socket
where a client looks for one would otherwise receive the client's token.

Imports little of the standard library, because every prompt of an agent starts programs that import this
(relay_supervisor/agents/light). `_socket` is the C half of `socket`, whose other half takes 6 ms to import.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

from relay_core import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class AnySocket(Protocol):
        """A socket, or the stand-in that a transport returns."""

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            """Return an option's bytes."""
            ...


SERVER_UID = "RELAY_SERVER_UID"
"""The environment variable with another uid whose supervisor a client may use."""


def peer_uid(sock: AnySocket) -> int:
    """Return the uid of the process on the other end; for a server, the process that began to listen.

    Raises:
        OSError: if the connection has ended.
    """
    if sys.platform == "linux":
        data = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
    else:
        data = sock.getsockopt(0, 1, 76)  # LOCAL_PEERCRED: struct xucred, version then uid
    return int.from_bytes(data[4:8], sys.byteorder)


def peer_pid(sock: AnySocket) -> int | None:
    """Return the process that opened the connection, for a server; None if it is in another pid namespace.

    Raises:
        OSError: if the connection has ended.
    """
    if sys.platform == "linux":
        data = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    else:
        data = sock.getsockopt(0, 2, 4)  # LOCAL_PEERPID
    return int.from_bytes(data[:4], sys.byteorder) or None


def find_stranger(sock: AnySocket) -> str | None:
    """Return why a client must not use the server of its socket; None if it is the user's own.

    Raises:
        OSError: if the connection has ended.
    """
    uid, own = peer_uid(sock), os.geteuid()
    if uid == own or str(uid) == os.environ.get(SERVER_UID):
        return None
    return (
        f"it is served by uid {uid}, not by you (uid {own}), so nothing was sent: use the socket of your own "
        f"supervisor, or set {SERVER_UID}={uid} if that one is yours as well"
    )


def explain_unreachable(error: OSError) -> str:
    """Return why a client cannot connect to a supervisor, and what to do."""
    if isinstance(error, FileNotFoundError):
        return "no supervisor is running: start one with 'relay-supervisor run'"
    if isinstance(error, ConnectionRefusedError):
        return "the supervisor is gone: start one with 'relay-supervisor run'"
    if isinstance(error, PermissionError):
        return "it belongs to another user"
    if isinstance(error, TimeoutError | BlockingIOError):  # the latter: the backlog is full
        return "it does not answer"
    if error.errno == errno.ENAMETOOLONG or "too long" in str(error):
        return "its path is too long for a socket"
    return error.strerror or str(error)

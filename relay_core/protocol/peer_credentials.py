"""Who is on the other end of a Unix socket: the kernel says.

A server asks whom it lets in, and a client asks before its first byte who serves the socket: whoever can put a socket
where a client looks for one would be told the client's token.

Only the standard library, and little of it: the programs that every prompt of an agent starts import this
(relay_supervisor/agents/light). `_socket` is the C half of `socket`, whose other half takes 6 ms to import.
"""

from __future__ import annotations

import _socket
import os
import sys

from relay_core import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class AnySocket(Protocol):
        """A socket, or what a transport gives in its place."""

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            """Return an option's bytes."""
            ...


SERVER_UID = "RELAY_SERVER_UID"
"""The variable that names another uid whose supervisor a client may talk to."""


def peer_uid(sock: AnySocket) -> int:
    """Return the uid of the process on the other end; of a server, the one that began to listen.

    Raises:
        OSError: if there is no other end any more.
    """
    if sys.platform == "linux":
        data = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
    else:
        data = sock.getsockopt(0, 1, 76)  # LOCAL_PEERCRED: struct xucred, version then uid
    return int.from_bytes(data[4:8], sys.byteorder)


def find_stranger(sock: AnySocket) -> str | None:
    """Return why a client must not talk to the server of its socket; None if it is the user's own.

    Raises:
        OSError: if there is no other end any more.
    """
    uid, own = peer_uid(sock), os.geteuid()
    if uid == own or str(uid) == os.environ.get(SERVER_UID):
        return None
    return (
        f"it is served by uid {uid}, not by you (uid {own}), and was told nothing: use the socket of your own "
        f"supervisor, or set {SERVER_UID}={uid} if that one is yours as well"
    )

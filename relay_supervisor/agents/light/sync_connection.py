"""A connection to the supervisor for programs that must start fast: JSON lines on a Unix socket.

1. Requests may be pipelined: `send` returns the id of the answer, `receive` returns the frames that have arrived, `ask`
   sends one request and waits. The first request is always `server.hello`; its answer need not be awaited.
2. A lost connection raises `Unreachable` and cannot be used again. Requests without an answer have an unknown outcome.
3. A refusal by the supervisor raises `Refused`, with its code and message.
4. Nothing, above all no token, is sent to another user's server (relay_core/protocol/peer_credentials.py).
5. An agent uses its own token: `find_token` never falls back to the operator's.

`_socket` is the C half of `socket`; the Python half creates enumerations, which takes 6 ms.
"""

from __future__ import annotations

import _socket
import json
import os
import time

from relay_core.paths import agent_token_name, data_name, socket_name
from relay_core.protocol.peer_credentials import explain_unreachable, find_stranger
from relay_core.storage.trusted_file import read_trusted
from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_FRAME = 4 * 1024 * 1024
PROTOCOL_VERSION = 1

_CHUNK = 256 * 1024


class Unreachable(Exception):
    """The supervisor does not answer; the message says what to do."""


class Refused(Exception):
    """The supervisor refused a request."""

    def __init__(self, code: str, message: str, data: dict[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Address:
    """The supervisor's data directory and socket."""

    def __init__(self, data_dir: str, socket: str) -> None:
        self.data_dir = data_dir
        self.socket = socket

    @classmethod
    def find(cls, data_dir: str | None = None, socket: str | None = None) -> Address:
        """Return the given paths, or the defaults."""
        return cls(data_name(data_dir), socket_name(socket, data_dir))


def find_token(address: Address, subject: str, given: str | None = None) -> str:
    """Return an agent's token: the given one, RELAY_TOKEN, or the one in the file that `relay agent add` wrote."""
    token = given or os.environ.get("RELAY_TOKEN")
    if token:
        return token
    path = agent_token_name(address.data_dir, subject)
    try:
        return read_trusted(path).decode().strip()
    except FileNotFoundError:
        raise Unreachable(f"{subject} has no token: run 'relay agent add {subject}' first") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"cannot read the token of {subject} in {path}: {error}") from None


class SyncConnection:
    """One connection, until it is lost."""

    def __init__(self, sock: _socket.socket) -> None:
        self._socket = sock
        self._partial = b""
        self._out = b""
        self._last_id = 0
        self.hello_id = 0
        """The id of the answer to `server.hello`."""

    @classmethod
    def open(cls, address: Address, *, agent: str, token: str, client: str, timeout: float = 2.0) -> SyncConnection:
        """Connect and send `server.hello`, without waiting for the answer."""
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection = cls(sock)
        hello = {"protocol": PROTOCOL_VERSION, "client": client, "agent": agent, "token": token}
        try:
            sock.settimeout(timeout)
            sock.connect(address.socket)
            stranger = find_stranger(sock)
        except OSError as error:
            sock.close()
            raise Unreachable(f"cannot reach {address.socket}: {explain_unreachable(error)}") from None
        if stranger is not None:
            sock.close()
            raise Unreachable(f"cannot use {address.socket}: {stranger}")
        sock.setblocking(False)
        connection.hello_id = connection.send("server.hello", hello)
        return connection

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def unsent(self) -> bool:
        """True if data waits for the supervisor to read it."""
        return bool(self._out)

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Send a request and return the id of its answer; `Refused` if it does not fit into a frame."""
        self._last_id += 1
        frame = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        data = json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(data) > MAX_FRAME:
            raise Refused("frame_too_large", f"{len(data)} bytes do not fit into a frame of {MAX_FRAME}", {})
        self._out += data
        self.flush()
        return self._last_id

    def flush(self) -> None:
        """Send as much as the supervisor reads; a lost connection is reported by `receive`."""
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self._out = b""  # it may have sent the reason before it closed the connection

    def receive(self) -> list[dict[str, Any]]:
        """Return the frames that have arrived, without waiting: answers, and notifications, which have no id."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Unreachable(f"lost the connection to the supervisor: {error.strerror}") from None
        if not data:
            raise Unreachable("the supervisor has closed the connection")
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_FRAME:
            raise Unreachable(f"received a frame of more than {MAX_FRAME} bytes")
        return list(_frames(lines))

    def ask(self, method: str, params: dict[str, Any], timeout: float) -> Any:
        """Send a request and return its answer; other frames that arrive meanwhile are dropped."""
        return self.await_answer(self.send(method, params), timeout)

    def await_answer(self, id: int, timeout: float) -> Any:
        """Return the answer to a request that was sent, as `ask`; a refused hello is raised, too."""
        import select

        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            writing = [self] if self.unsent else []
            readable, writable, _ = select.select([self], writing, [], max(left, 0))
            if not readable and not writable:
                raise Unreachable(f"the supervisor has not answered within {timeout:.2g} s")
            if writable:
                self.flush()
            for frame in self.receive() if readable else ():
                answered = frame.get("id")
                if "error" in frame and answered in (id, self.hello_id, None):
                    raise refusal(frame["error"])
                if answered == id:
                    return frame.get("result")


def refusal(error: Any) -> Refused:
    """Return the exception for an error in an answer."""
    error = error if isinstance(error, dict) else {}
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    return Refused(str(data.get("code", "error")), str(error.get("message", "unknown error")), data)


def _frames(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError):
            raise Unreachable("this is not a supervisor: it sent invalid JSON") from None
        if not isinstance(frame, dict):
            raise Unreachable("this is not a supervisor: it sent a frame that is not an object")
        yield frame

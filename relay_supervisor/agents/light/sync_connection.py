"""A connection to the supervisor for programs that must start quickly: JSON lines on a Unix socket.

1. Requests may be pipelined: `send` says something and returns its id, `receive` returns what has come, `ask` does both
   for one request and waits. The first request is always `server.hello`; its answer needs no waiting for.
2. Whatever ends the connection is `Unreachable`, and the line is of no use afterwards. What had been asked and was not
   answered has an unknown outcome.
3. What the supervisor refuses is `Refused`, with its code and its words.
4. Nothing is said, above all no token, to a server of another user (relay_core/protocol/peer_credentials.py).
5. An agent speaks by its token, which is its own: `find_token` never falls back to the operator.

`_socket` is the C half of `socket`. The other half makes enumerations of all constants first, which takes 6 ms.
"""

from __future__ import annotations

import _socket
import json
import os
import time

from relay_core.paths import agent_token_name, data_name, socket_name
from relay_core.protocol.peer_credentials import find_stranger
from relay_core.storage.trusted_file import read_trusted
from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_FRAME = 4 * 1024 * 1024
PROTOCOL_VERSION = 1

_CHUNK = 256 * 1024


class Unreachable(Exception):
    """Nobody answers; the text says what to do."""


class Refused(Exception):
    """The supervisor said no."""

    def __init__(self, code: str, message: str, data: dict[str, Any]) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Address:
    """Where the supervisor is."""

    def __init__(self, data_dir: str, socket: str) -> None:
        self.data_dir = data_dir
        self.socket = socket

    @classmethod
    def find(cls, data_dir: str | None = None, socket: str | None = None) -> Address:
        """Return the places that were chosen, or the usual ones."""
        return cls(data_name(data_dir), socket_name(socket, data_dir))


def find_token(address: Address, subject: str, given: str | None = None) -> str:
    """Return the token by which an agent speaks: given, else RELAY_TOKEN, else the file that `relay agent add` wrote.

    Raises:
        Unreachable: if there is none.
    """
    token = given or os.environ.get("RELAY_TOKEN")
    if token:
        return token
    path = agent_token_name(address.data_dir, subject)
    try:
        return read_trusted(path).decode().strip()
    except FileNotFoundError:
        raise Unreachable(f"{subject} has no token here: run 'relay agent add {subject}' first") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"cannot read the token of {subject} in {path}: {error}") from None


class SyncConnection:
    """One connection, until it is lost."""

    def __init__(self, sock: _socket.socket) -> None:
        self._socket = sock
        self._begun = b""
        self._out = b""
        self._last_id = 0
        self.hello_id = 0
        """The id that the answer to `server.hello` has."""

    @classmethod
    def open(cls, address: Address, *, agent: str, token: str, client: str, timeout: float = 2.0) -> SyncConnection:
        """Connect and say hello, without waiting for the answer.

        Raises:
            Unreachable: if nobody answers there, or another user does.
        """
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection = cls(sock)
        hello = {"protocol": PROTOCOL_VERSION, "client": client, "agent": agent, "token": token}
        try:
            sock.settimeout(timeout)
            sock.connect(address.socket)
            stranger = find_stranger(sock)
        except OSError as error:
            sock.close()
            raise Unreachable(f"cannot reach {address.socket}: {_explain(error)}") from None
        if stranger is not None:
            sock.close()
            raise Unreachable(f"cannot use {address.socket}: {stranger}")
        sock.setblocking(False)
        connection.hello_id = connection.send("server.hello", hello)
        return connection

    def fileno(self) -> int:
        """Return what a selector can watch."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    @property
    def unsent(self) -> bool:
        """Whether something waits for the supervisor to read."""
        return bool(self._out)

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Ask something and return the id of the answer to come.

        Raises:
            Refused: with code `frame_too_large`, if it does not fit into a frame.
        """
        self._last_id += 1
        frame = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        data = json.dumps(frame, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n"
        if len(data) > MAX_FRAME:
            raise Refused("frame_too_large", f"{len(data)} bytes do not fit into a frame of {MAX_FRAME}", {})
        self._out += data
        self.flush()
        return self._last_id

    def flush(self) -> None:
        """Send what waits, as far as the supervisor reads; whether it is still there is for `receive` to tell."""
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            return
        except OSError:
            self._out = b""  # it has hung up, and may have said why before

    def receive(self) -> list[dict[str, Any]]:
        """Return the frames that have come, without waiting: answers, and notifications, which have no id.

        Raises:
            Unreachable: if the connection is lost, or what comes makes no sense.
        """
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            raise Unreachable(f"the supervisor is gone: {error.strerror}") from None
        if not data:
            raise Unreachable("the supervisor has closed the connection")
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > MAX_FRAME:
            raise Unreachable(f"a frame of more than {MAX_FRAME} bytes came")
        return list(_frames(lines))

    def ask(self, method: str, params: dict[str, Any], timeout: float) -> Any:
        """Ask something and wait for the answer; nothing else that comes meanwhile is kept.

        Raises:
            Refused: if the supervisor says no, to this or to the hello.
            Unreachable: if the connection is lost, or the answer takes longer.
        """
        return self.await_answer(self.send(method, params), timeout)

    def await_answer(self, id: int, timeout: float) -> Any:
        """Wait for the answer to something that was sent; the rest as `ask`."""
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
    """Return what an answer's error says."""
    error = error if isinstance(error, dict) else {}
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    return Refused(str(data.get("code", "error")), str(error.get("message", "unknown error")), data)


def _frames(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for connection in lines:
        if not connection.strip():
            continue
        try:
            frame = json.loads(connection)
        except (ValueError, RecursionError):
            raise Unreachable("whoever answers there is no supervisor: it speaks no JSON") from None
        if not isinstance(frame, dict):
            raise Unreachable("whoever answers there is no supervisor: a frame is no object")
        yield frame


def _explain(error: OSError) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return "no supervisor is running: start one with 'relay-supervisor run'"
    if isinstance(error, PermissionError):
        return "it belongs to another user"
    if isinstance(error, TimeoutError | BlockingIOError):  # the latter: too many wait to be let in already
        return "it does not answer"
    return error.strerror or str(error)

"""The Unix socket: only its user can connect, and a shutdown loses no message in flight.

1. A lock file beside the socket marks who serves it. The holder of the lock may replace an existing socket file: it
   belongs to a dead process. A killed server leaves both files behind, which does not prevent the next start.
2. The socket is 0600 before any client can connect (bind, chmod, listen), in a directory that is created 0700. A
   directory that others can write to is refused: they could place their own socket there.
3. The kernel reports every peer's uid; only the socket's own user and root are accepted.
4. There are at most `max_connections`; a further one gets an error and is closed. The limit leaves enough file
   descriptors for the bus itself.
5. Shutdown: no new connections, no new requests except those marked `STOPPING`, up to `DRAIN_SECS` for requests and
   messages in flight, then every connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self

from filelock import FileLock, Timeout

from relay_core.errors import Closed, StorageError
from relay_core.journal.commit import PublishBatch
from relay_core.protocol.frames import Request
from relay_core.protocol.methods import LONG_POLL, STOPPING, WATCHES_TASK, has_trait
from relay_core.protocol.peer_credentials import peer_uid
from relay_core.tasks import Tasks
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.flow_control import FairTurns
from relay_supervisor.server.identity import Identity
from relay_supervisor.server.output import FlushQueue

logger = logging.getLogger(__name__)

DRAIN_SECS = 10.0
MAX_CONNECTIONS = 1000
PATH_MAX = 107 if sys.platform == "linux" else 103
"""Bytes in the path of a socket at most."""
_BACKLOG = 256


class Answerer(Protocol):
    """Answers requests by their method."""

    greeting: dict[str, Any]

    def batch(self) -> PublishBatch:
        """Store the publishes that begin in a `with` statement together."""
        ...

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request, or an awaitable of it."""
        ...

    def identity(self) -> Identity:
        """Return the identity of a connection of the socket's user before any `server.hello`."""
        ...

    def in_flight(self) -> list[asyncio.Future[None]]:
        """Return futures that end as consumers finish their in-flight messages."""
        ...


class SocketServer:
    """Accept connections and pass their requests on."""

    def __init__(self, path: Path, answerer: Answerer, connections: set[Connection]) -> None:
        self.path = path
        self.connections = connections
        self.tasks = Tasks()
        self.turns = FairTurns()
        self.output = FlushQueue()
        self.greeting = answerer.greeting
        self.max_connections = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.before_close: Callable[[], None] | None = None
        """Called when draining begins."""
        self._answerer = answerer
        self._draining = False
        self._server: asyncio.Server | None = None
        self._lock = FileLock(f"{path}.lock", timeout=0, mode=0o600, thread_local=False)
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start listening.

        Raises:
            StorageError: if the socket cannot be created, or another process serves it.
        """
        listening = self._bind()
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: Connection(self), sock=listening, backlog=_BACKLOG
            )
        except BaseException:
            listening.close()
            self._remove()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Accept no more connections, drain, and close."""
        self._draining = True
        if self._server is not None:
            self._server.close()
        self._remove()
        if self.before_close is not None:
            self.before_close()
        for connection in self.connections:
            connection.notify("closing", {"reason": "the supervisor is stopping"})
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECS):
                await self._drain()
        await self.tasks.close()
        for connection in list(self.connections):
            connection.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.connections:
                    self._changed.clear()
                    await self._changed.wait()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    # For connections

    def identify(self, connection: Connection) -> Identity | str:
        """Return the peer's identity, or why it is refused."""
        self.connections.add(connection)
        if self._draining:
            return "the supervisor is stopping"
        if len(self.connections) > self.max_connections:
            return f"there are already {self.max_connections} connections: close some"
        uid = peer_uid(connection.transport.get_extra_info("socket"))
        if uid not in (os.geteuid(), 0):
            logger.warning("refused a connection from uid %s", uid)
            return f"this socket is for uid {os.geteuid()} only"
        return self._answerer.identity()

    def batch(self) -> PublishBatch:
        """Store the publishes that begin in a `with` statement together."""
        return self._answerer.batch()

    def answer(self, connection: Connection, request: Request) -> Any:
        """Pass a request on."""
        if self._draining and not has_trait(request.method, STOPPING):
            raise Closed("the supervisor is stopping: retry when it is back", code="stopping")
        return self._answerer.answer(connection, request)

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._changed.set()

    # Inside

    async def _drain(self) -> None:
        """Wait until neither requests nor messages are in flight."""
        while pending := [*self._requests(), *self._answerer.in_flight()]:
            await asyncio.wait(pending)
        for connection in list(self.connections):
            for publish in list(connection.publishes):
                with suppress(Exception):  # its connection gets the error
                    await publish

    def _requests(self) -> list[asyncio.Task[Any]]:
        """Return the requests that end without an outside event."""
        waits = (LONG_POLL, WATCHES_TASK)
        return [task for task in self.tasks.running() if not any(has_trait(task.get_name(), trait) for trait in waits)]

    def _bind(self) -> socket.socket:
        path = self.path
        if len(os.fsencode(path)) > PATH_MAX:
            why = f"the socket's path {path} is longer than {PATH_MAX} bytes: choose a shorter one with --socket"
            raise StorageError(why, code="socket_path_too_long", path=str(path))
        try:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700, parents=True)
            _check_directory(path.parent)
            self._lock.acquire()
            with suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    why = f"{path} exists and is not a socket: remove it, or choose another with --socket"
                    raise StorageError(why, code="socket_in_use", path=str(path))
                path.unlink()
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listening.bind(str(path))
            path.chmod(0o600)
        except Timeout:
            why = f"{path} is served by another supervisor: stop it first, or choose another with --socket"
            raise StorageError(why, code="socket_in_use", path=str(path)) from None
        except StorageError:
            self._lock.release(force=True)
            raise
        except OSError as error:
            self._lock.release(force=True)
            raise StorageError(f"cannot create the socket {path}: {error}", path=str(path)) from error
        listening.setblocking(False)
        return listening

    def _remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        self._lock.release(force=True)


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit, or to 65,536 if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_directory(directory: Path) -> None:
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (os.geteuid(), 0):
        why = f"{directory} belongs to uid {status.st_uid}, which could replace the socket: choose"
    elif mode & 0o022 and not mode & stat.S_ISVTX:
        why = f"others can write to {directory} (mode {mode:04o}): run 'chmod 700 {directory}', or choose"
    else:
        return
    raise StorageError(f"{why} another directory with --socket", code="insecure_socket", path=str(directory))

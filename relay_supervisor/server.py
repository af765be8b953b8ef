"""The Unix socket: made so that only its user can connect, and left without losing what is in flight.

1. A lock file beside the socket says who serves it. Whoever holds the lock may take the place of a socket file
   that is there: it is a dead process's. A kill leaves both behind and prevents nothing.
2. The socket is 0600 before anybody can connect (bound, then restricted, then listening), in a directory that is
   made 0700. A directory that others can write to is refused: they could put their own socket there.
3. Every peer's uid is asked of the kernel; only the socket's own user and root are talked to.
4. There are at most `max_connections`; one more is told so and closed. The limit leaves enough file descriptors for
   the bus itself.
5. Leaving: nobody new is let in, nothing new is begun but what finishes deliveries, what is in flight gets
   `DRAIN_SECS`, and then every connection is closed.
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
from types import TracebackType
from typing import Any, Protocol, Self

from filelock import FileLock, Timeout

from relay_core.errors import Closed, StorageError
from relay_core.frames import Request
from relay_core.peer import peer_uid
from relay_core.tasks import Tasks
from relay_supervisor.connection import Connection
from relay_supervisor.identity import Identity
from relay_supervisor.pacing import Turns

logger = logging.getLogger(__name__)

DRAIN_SECS = 10.0
MAX_CONNECTIONS = 1000
PATH_MAX = 107 if sys.platform == "linux" else 103
"""Bytes that a socket's path may have."""
_BACKLOG = 256
_FINISHING = frozenset(
    {"start", "ack", "fail", "inbox.complete", "inbox.fail", "server.hello", "server.info", "server.ping"}
)
"""What is still answered while the supervisor is stopping."""
_WATCHING = frozenset({"deadletters.wait", "inbox.wait", "jobs.run"})
"""What waits for something that outlasts it, and need not be waited for."""


class Answerer(Protocol):
    """Who knows the methods."""

    greeting: dict[str, Any]

    def answer(self, connection: Connection, request: Request) -> Any:
        """Return the result of a request, or something to await for it."""
        ...

    def identity(self) -> Identity:
        """Return what a connection of the socket's user may do that has not said hello."""
        ...

    def in_hand(self) -> list[asyncio.Future[None]]:
        """Return what ends as consumers finish the messages they have in hand."""
        ...


class SocketServer:
    """Accept connections and pass their requests on."""

    def __init__(self, path: Path, answerer: Answerer, connections: set[Connection]) -> None:
        self.path = path
        self.connections = connections
        self.tasks = Tasks()
        self.turns = Turns()
        self.greeting = answerer.greeting
        self.max_connections = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self.before_close: Callable[[], None] | None = None
        """Told when draining begins."""
        self._answerer = answerer
        self._draining = False
        self._server: asyncio.Server | None = None
        self._lock = FileLock(f"{path}.lock", timeout=0, mode=0o600, thread_local=False)
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            StorageError: if the socket cannot be made, or another process serves it.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let nobody in, let what is in flight end, and close."""
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
        """Say who has connected, or why not to talk to them."""
        self.connections.add(connection)
        if self._draining:
            return "the supervisor is stopping"
        if len(self.connections) > self.max_connections:
            return f"there are {self.max_connections} connections already: close some"
        uid = peer_uid(connection.transport.get_extra_info("socket"))
        if uid not in (os.geteuid(), 0):
            logger.warning("a process of uid %s was turned away", uid)
            return f"this socket is for uid {os.geteuid()} only"
        return self._answerer.identity()

    def answer(self, connection: Connection, request: Request) -> Any:
        """Pass a request on."""
        if self._draining and request.method not in _FINISHING:
            raise Closed("the supervisor is stopping: ask again when it is back", code="stopping")
        return self._answerer.answer(connection, request)

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection."""
        self.connections.discard(connection)
        self._changed.set()

    # Inside

    async def _drain(self) -> None:
        """Wait until nothing is in flight: no request, and no message in a consumer's hands."""
        while under_way := [*self._requests(), *self._answerer.in_hand()]:
            await asyncio.wait(under_way)

    def _requests(self) -> list[asyncio.Task[Any]]:
        """Return the requests that will end by themselves, and not only with what they watch."""
        return [task for task in self.tasks.running() if task.get_name() not in _WATCHING]

    def _bind(self) -> socket.socket:
        path = self.path
        if len(os.fsencode(path)) > PATH_MAX:
            raise StorageError(
                f"the socket's path {path} is longer than {PATH_MAX} bytes: choose a shorter one with --socket",
                code="socket_path_too_long",
                path=str(path),
            )
        try:
            with suppress(FileExistsError):
                path.parent.mkdir(mode=0o700, parents=True)
            _check_directory(path.parent)
            self._lock.acquire()
            with suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise StorageError(
                        f"{path} is there and is no socket: remove it, or choose another with --socket",
                        code="socket_in_use",
                        path=str(path),
                    )
                path.unlink()
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.bind(str(path))
            path.chmod(0o600)
        except Timeout:
            raise StorageError(
                f"{path} is served by another supervisor: stop it first, or choose another with --socket",
                code="socket_in_use",
                path=str(path),
            ) from None
        except StorageError:
            self._lock.release(force=True)
            raise
        except OSError as error:
            self._lock.release(force=True)
            raise StorageError(f"cannot make the socket {path}: {error}", path=str(path)) from error
        made.setblocking(False)
        return made

    def _remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        self._lock.release(force=True)


def raise_file_limit() -> None:
    """Let this process have as many files open as it is allowed to, and can have a use for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_directory(directory: Path) -> None:
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise StorageError(
            f"{directory} belongs to uid {found.st_uid}, who could put another socket there: "
            "choose another place with --socket",
            code="insecure_socket",
            path=str(directory),
        )
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise StorageError(
            f"others can write to {directory} (mode {mode:04o}): run 'chmod 700 {directory}', "
            "or choose another place with --socket",
            code="insecure_socket",
            path=str(directory),
        )

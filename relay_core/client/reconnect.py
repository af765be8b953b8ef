"""A client that reconnects when its connection is lost: the base of RelayClient's verbs.

1. A lost connection is opened again, with growing pauses, until the call's timeout. The request is sent again, unless
   its method is not idempotent (`ONCE`): then the error says that the outcome is unknown.
2. A supervisor that is stopping has not carried out the requests it refuses: they are sent again when it is back.
3. Streams are notified of the loss and start again on the next connection, however long that takes (streams.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from random import uniform
from types import TracebackType
from typing import Any, Self

from relay_core.client.connection import Connection, ConnectionLost
from relay_core.client.streams import Stream
from relay_core.errors import Closed, SupervisorUnavailable
from relay_core.paths import data_path, operator_token_path, socket_path
from relay_core.protocol.base import PROTOCOL_VERSION
from relay_core.protocol.methods import NOTIFICATIONS, ONCE, has_trait, parse_answer
from relay_core.protocol.serving import Hello
from relay_core.storage.trusted_file import read_trusted

TIMEOUT_SECS = 30.0
OWN_TIMEOUT = -1.0
"""Stands for the client's own timeout; None means no timeout."""
_FIRST_PAUSE_SECS = 0.05
_LONGEST_PAUSE_SECS = 0.25
"""Short: an attempt costs a tenth of a millisecond, and a dashboard should notice a restart immediately."""


class ReconnectingClient:
    """Call methods over a connection that is replaced when it is lost."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        token: str | None = None,
        name: str | None = None,
        timeout: float = TIMEOUT_SECS,
    ) -> None:
        self.path = socket_path(socket, data_dir)
        self.hello: Hello | None = None
        """The supervisor's answer to the last handshake."""
        self.data_dir = data_path(data_dir)
        self._is_chosen = bool(data_dir or os.environ.get("RELAY_DATA_DIR"))
        self._token = token or os.environ.get("RELAY_TOKEN")
        self._name = name
        self._timeout = timeout
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._streams: dict[tuple[Connection, str], Stream] = {}
        self._early: dict[tuple[Connection, str], list[dict[str, Any]]] = {}
        """Notifications that arrived before the answer that names their stream."""
        self.trouble: str | None = None
        """Why the last attempt to connect failed."""
        self._closed = False
        self.on_connection: Callable[[bool], None] = lambda is_made: None
        """Called with True when connected, with False when the connection is lost."""

    @property
    def connected(self) -> bool:
        """Return True if there is a connection."""
        return self._connection is not None and not self._connection.lost.done()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            SupervisorUnavailable: if no supervisor answers.
            AccessDenied: if the token is unknown.
        """
        self._closed = False
        try:
            async with asyncio.timeout(self._timeout):
                self._connection = await self._open()
        except TimeoutError as error:
            raise self._unanswered("server.hello", self._timeout) from error
        except SupervisorUnavailable as error:
            self.trouble = error.message
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in list(self._streams.values()):
            await stream.close(error)
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(connection.lost)

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = OWN_TIMEOUT,
        on_late_answer: Callable[[Connection, Any], None] | None = None,
    ) -> Any:
        """Call a method by name, reconnecting within the timeout if the connection is lost.

        An answer that arrives after a cancellation is passed to `on_late_answer`.

        Raises:
            SupervisorUnavailable: if no answer arrives in time; with code `outcome_unknown` if it was lost.
            RelayError: the error that the supervisor raised.
        """
        limit = self._timeout if timeout == OWN_TIMEOUT else timeout
        deadline = asyncio.get_running_loop().time() + limit if limit is not None else inf
        try:
            while True:
                connection = self._connection
                if connection is None or self._closed or connection.lost.done():
                    async with _until(deadline):
                        connection = await self._connected()
                try:
                    return await connection.request(
                        method, params or {}, on_late_answer and partial(on_late_answer, connection), deadline=deadline
                    )
                except ConnectionLost as lost:
                    if has_trait(method, ONCE):
                        raise SupervisorUnavailable(
                            f"the connection was lost before {method} was answered: check whether it was done",
                            socket=str(self.path),
                            code="outcome_unknown",
                        ) from lost
                except Closed as error:
                    if error.code != "stopping" or method == "server.stop":
                        raise
                    async with _until(deadline):
                        await asyncio.shield(connection.lost)
        except TimeoutError as error:
            raise self._unanswered(method, limit) from error

    async def open_stream(
        self, stream: Stream, method: str, key: str, params: dict[str, Any]
    ) -> tuple[Connection, str]:
        """Start a stream on the current connection, waiting for one as long as it takes."""
        while True:
            connection = await self._connected()
            try:
                await stream.prepare(connection)
                answer = await connection.request(method, params, partial(stream.decline, connection))
            except ConnectionLost:
                continue
            except Closed as error:
                if error.code != "stopping":
                    raise
                await asyncio.shield(connection.lost)
                continue
            if stream.closed:  # meanwhile
                stream.decline(connection, answer)
                raise Closed("the stream is closed")
            self.adopt(stream, connection, answer[key])
            return connection, answer[key]

    def adopt(self, stream: Stream, connection: Connection, stream_id: str) -> None:
        """Pass a stream its notifications, starting with those that arrived early."""
        if not connection.lost.done():
            self._streams[connection, stream_id] = stream
            for note in self._early.pop((connection, stream_id), ()):
                stream.take(connection, note)

    def forget(self, stream: Stream) -> None:
        """Pass a stream no more notifications."""
        for key in [key for key, open_stream in self._streams.items() if open_stream is stream]:
            del self._streams[key]
        if not self._streams:
            self._streams.clear()  # frees the table of a dict that was large

    async def _connected(self) -> Connection:
        """Return a connection, reconnecting as long as it takes."""
        pause = _FIRST_PAUSE_SECS
        while True:
            if self._closed:
                await self.close()  # a connection that was opened meanwhile
                raise Closed("the client is closed")
            if self._connection is not None and self.connected:
                return self._connection
            async with self._connecting:
                if self._connection is not None and self.connected:
                    return self._connection
                try:
                    self._connection = await self._open()
                except SupervisorUnavailable as error:
                    if error.code in ("other_data_dir", "foreign_supervisor"):
                        raise
                    self.trouble = error.message
                    await asyncio.sleep(uniform(0.5, 1.0) * pause)
                    pause = min(pause * 2, _LONGEST_PAUSE_SECS)

    async def _open(self) -> Connection:
        connection = await Connection.open(self.path, self._note)
        connection.lost.add_done_callback(lambda _: self._lost(connection))
        try:
            hello = await self._say_hello(connection, self._token)
            if not hello.operator and hello.pattern is None and (token := self._operator_token()) is not None:
                hello = await self._say_hello(connection, token)
            self._check_place(hello)
        except ConnectionLost as lost:
            raise SupervisorUnavailable(
                f"cannot reach {self.path}: {str(lost) or 'it closed the connection'}", socket=str(self.path)
            ) from lost
        except BaseException:
            connection.close()
            raise
        self.hello = hello
        self.trouble = None
        self.on_connection(True)
        return connection

    def _check_place(self, hello: Hello) -> None:
        """Check that the supervisor serves the chosen data directory: one socket path may serve many."""
        if self._is_chosen and Path(hello.data_dir).resolve() != self.data_dir.resolve():
            raise SupervisorUnavailable(
                f"{self.path} serves {hello.data_dir}, not {self.data_dir}: give its socket with --socket",
                socket=str(self.path),
                code="other_data_dir",
            )

    async def _say_hello(self, connection: Connection, token: str | None) -> Hello:
        params = given(protocol=PROTOCOL_VERSION, client=self._name, token=token)
        return parse_answer(Hello, "server.hello", await connection.request("server.hello", params))

    def _operator_token(self) -> str | None:
        try:
            return read_trusted(operator_token_path(self.data_dir), private=True).decode().strip() or None
        except (OSError, ValueError):  # missing or not the user's own: the supervisor reports if it needs one
            return None

    def _note(self, connection: Connection, method: str, params: dict[str, Any]) -> None:
        if method not in NOTIFICATIONS:
            return  # from a newer supervisor
        stream_id = params.get("subscriptionId") or params.get("watchId")
        if stream_id is None:
            return
        stream = self._streams.get((connection, stream_id))
        if stream is not None:
            stream.take(connection, params)
        else:
            self._early.setdefault((connection, stream_id), []).append(params)

    def _unanswered(self, method: str, limit: float | None) -> SupervisorUnavailable:
        why = f": {self.trouble}" if self.trouble else ""
        code = "outcome_unknown" if has_trait(method, ONCE) and not self.trouble else ""
        return SupervisorUnavailable(f"no answer to {method} within {limit:g} s{why}", socket=str(self.path), code=code)

    def _lost(self, connection: Connection) -> None:
        for key in [key for key in self._streams if key[0] is connection]:
            self._streams.pop(key).lose()
        for key in [key for key in self._early if key[0] is connection]:
            del self._early[key]
        if connection is self._connection:
            self.on_connection(False)


def _until(deadline: float) -> asyncio.Timeout:
    return asyncio.timeout_at(deadline if deadline < inf else None)


def given(**params: Any) -> dict[str, Any]:
    """Return the parameters that are not None."""
    return {name: value for name, value in params.items() if value is not None}

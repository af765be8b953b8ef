"""A connection to the supervisor that is made again when it is lost: what RelayClient's verbs rest on.

1. A lost connection is made again, with growing pauses, for as long as the call's timeout lasts. What was asked is
   asked again, unless that could do it twice (`NOT_AGAIN`): then the error says that the outcome is unknown.
2. A supervisor that is stopping has done nothing of what it refuses: it is asked again when it is back.
3. Streams are told of the loss and begin anew on the next connection, however long that takes (client_streams.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import uniform
from types import TracebackType
from typing import Any, Self

from relay_core.client_streams import MessageStream, Stream
from relay_core.errors import Closed, SupervisorUnavailable
from relay_core.link import Link, LinkLost
from relay_core.own_files import read_own
from relay_core.places import data_path, operator_token_path, socket_path
from relay_core.protocol import NOTIFICATIONS, PROTOCOL_VERSION, Hello, parse_answer

TIMEOUT_SECS = 30.0
OWN_TIMEOUT = -1.0
"""Stands for the timeout that the client was made with; None is no timeout at all."""
_FIRST_PAUSE_SECS = 0.05
_LONGEST_PAUSE_SECS = 0.25
"""Short: a try costs a tenth of a millisecond, and whoever looks on wants to see at once that it is back."""
NOT_AGAIN = frozenset(
    {
        "deadletters.run",
        "deadletters.edit",
        "tokens.add",
        "agents.remove",
        "jobs.run",
        "inbox.complete",
        "inbox.fail",
        "server.stop",
    }
)
"""Methods that must not be asked again when the answer was lost."""


class Redial:
    """A connection that is made again when it is lost."""

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
        """What the supervisor said when the connection was last made."""
        self.data_dir = data_path(data_dir)
        self._is_chosen = bool(data_dir or os.environ.get("RELAY_DATA_DIR"))
        self._token = token or os.environ.get("RELAY_TOKEN")
        self._name = name
        self._timeout = timeout
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._streams: dict[tuple[Link, str], Stream] = {}
        self._early: dict[tuple[Link, str], list[dict[str, Any]]] = {}
        """Notifications that overtook the answer which names their stream."""
        self.trouble: str | None = None
        """Why the connection could not be made again so far."""
        self._closed = False
        self.on_connection: Callable[[bool], None] = lambda is_made: None
        """Told whenever the connection has been made, or lost."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._link is not None and not self._link.lost.done()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            SupervisorUnavailable: if nobody answers.
            AccessDenied: if the token is not known.
        """
        self._closed = False
        try:
            async with asyncio.timeout(self._timeout):
                self._link = await self._open()
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
            if isinstance(stream, MessageStream):
                await stream.close(error)
            else:
                await stream.close()
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            link.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.shield(link.lost)

    async def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = OWN_TIMEOUT,
        unwanted: Callable[[Link, Any], None] | None = None,
    ) -> Any:
        """Call a method by name; the connection is made again within the timeout if it is lost.

        An answer that comes when nobody waits for it any more is given to `unwanted`.

        Raises:
            SupervisorUnavailable: if nobody answers in time; with code `outcome_unknown` if the answer was lost.
            RelayError: what the supervisor raised.
        """
        limit = self._timeout if timeout == OWN_TIMEOUT else timeout
        try:
            async with asyncio.timeout(limit):
                while True:
                    link = await self._connected()
                    try:
                        return await link.request(method, params or {}, unwanted and partial(unwanted, link))
                    except LinkLost as lost:
                        if method in NOT_AGAIN:
                            raise SupervisorUnavailable(
                                f"the connection was lost before {method} was answered: look whether it was done",
                                socket=str(self.path),
                                code="outcome_unknown",
                            ) from lost
                    except Closed as error:
                        if error.code != "stopping" or method == "server.stop":
                            raise
                        await asyncio.shield(link.lost)
        except TimeoutError as error:
            raise self._unanswered(method, limit) from error

    async def open_stream(self, stream: Stream, method: str, key: str, params: dict[str, Any]) -> tuple[Link, str]:
        """Begin a stream on the current connection, waiting for one as long as it takes."""
        while True:
            link = await self._connected()
            try:
                await stream.prepare(link)
                answer = await link.request(method, params, partial(stream.decline, link))
            except LinkLost:
                continue
            except Closed as error:
                if error.code != "stopping":
                    raise
                await asyncio.shield(link.lost)
                continue
            if stream.closed:  # meanwhile
                stream.decline(link, answer)
                raise Closed("the stream is closed")
            self.adopt(stream, link, answer[key])
            return link, answer[key]

    def adopt(self, stream: Stream, link: Link, stream_id: str) -> None:
        """Pass to a stream what comes for it, and what has come already."""
        if not link.lost.done():
            self._streams[link, stream_id] = stream
            for note in self._early.pop((link, stream_id), ()):
                stream.take(link, note)

    def forget(self, stream: Stream) -> None:
        """Pass nothing more to a stream."""
        for key in [key for key, known in self._streams.items() if known is stream]:
            del self._streams[key]
        if not self._streams:
            self._streams.clear()  # a dict that was large keeps its table until then

    async def _connected(self) -> Link:
        """Return a connection, made again if need be, however long that takes."""
        pause = _FIRST_PAUSE_SECS
        while True:
            if self._closed:
                await self.close()  # a connection that was being made meanwhile
                raise Closed("the client is closed")
            if self._link is not None and self.connected:
                return self._link
            async with self._connecting:
                if self._link is not None and self.connected:
                    return self._link
                try:
                    self._link = await self._open()
                except SupervisorUnavailable as error:
                    if error.code in ("other_data_dir", "foreign_supervisor"):
                        raise
                    self.trouble = error.message
                    await asyncio.sleep(uniform(0.5, 1.0) * pause)
                    pause = min(pause * 2, _LONGEST_PAUSE_SECS)

    async def _open(self) -> Link:
        link = await Link.open(self.path, self._note)
        link.lost.add_done_callback(lambda _: self._lost(link))
        try:
            hello = await self._say_hello(link, self._token)
            if not hello.operator and hello.pattern is None and (token := self._operator_token()) is not None:
                hello = await self._say_hello(link, token)
            self._check_place(hello)
        except LinkLost as lost:
            raise SupervisorUnavailable(
                f"cannot reach {self.path}: {str(lost) or 'it closed the connection'}", socket=str(self.path)
            ) from lost
        except BaseException:
            link.close()
            raise
        self.hello = hello
        self.trouble = None
        self.on_connection(True)
        return link

    def _check_place(self, hello: Hello) -> None:
        """Check that it is the supervisor of the data directory that was chosen: one socket may stand for many."""
        if self._is_chosen and Path(hello.data_dir).resolve() != self.data_dir.resolve():
            raise SupervisorUnavailable(
                f"{self.path} serves {hello.data_dir}, not {self.data_dir}: name the other's socket with --socket",
                socket=str(self.path),
                code="other_data_dir",
            )

    async def _say_hello(self, link: Link, token: str | None) -> Hello:
        params = {"protocol": PROTOCOL_VERSION, "client": self._name, "token": token}
        params = {name: value for name, value in params.items() if value is not None}
        return parse_answer(Hello, "server.hello", await link.request("server.hello", params))

    def _operator_token(self) -> str | None:
        try:
            return read_own(operator_token_path(self.data_dir), private=True).decode().strip() or None
        except (OSError, ValueError):  # not there, or not the user's own: the supervisor says if one is needed
            return None

    def _note(self, link: Link, method: str, params: dict[str, Any]) -> None:
        if method not in NOTIFICATIONS:
            return  # of a newer supervisor
        stream_id = params.get("subscriptionId") or params.get("watchId")
        if stream_id is None:
            return
        stream = self._streams.get((link, stream_id))
        if stream is not None:
            stream.take(link, params)
        else:
            self._early.setdefault((link, stream_id), []).append(params)

    def _unanswered(self, method: str, limit: float | None) -> SupervisorUnavailable:
        why = f": {self.trouble}" if self.trouble else ""
        code = "outcome_unknown" if method in NOT_AGAIN and not self.trouble else None
        return SupervisorUnavailable(f"no answer to {method} within {limit:g} s{why}", socket=str(self.path), code=code)

    def _lost(self, link: Link) -> None:
        for key in [key for key in self._streams if key[0] is link]:
            self._streams.pop(key).lose()
        for key in [key for key in self._early if key[0] is link]:
            del self._early[key]
        if link is self._link:
            self.on_connection(False)

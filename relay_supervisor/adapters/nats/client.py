"""The library's client, made to fail where it can be seen.

1. However its connection, or only its reading, comes to an end, it says so: the library ends its reading on an error
   of its own without a word, and would stay connected and deaf.
2. A header block that cannot be read makes a message that says so (`UNREADABLE`), rather than an error in the reading
   or a message whose limits have been lost.
3. Where TLS is wanted, not a word of ours, and so no credential of any kind, leaves before the connection has it:
   whether a server offers TLS is said in the clear, by anybody.
4. What a closing that failed, or did not end, has left is let go of.
5. The answer to a ping, which a flush and the draining of a subscription wait for, means that the server has heard all
   that was said before it: the library writes a ping past what still waits to be written.

This leans on inner parts of nats-py: `_close`, `_read_loop`, `_process_headers`, `_connect_command`, `_send_ping`,
`_subs`, `_pending` with its `_pending_data_size`, and `_transport` with its `_io_writer` and `_bare_io_writer`. All of
them are in 2.11 to 2.16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import SecureConnWantedError

from relay_supervisor.adapters.nats.crossing import UNREADABLE

_FIRST_LINE = b"NATS/1.0"


class BridgeClient(Client):
    """A client of one connection."""

    def __init__(self, on_end: Callable[[], None], *, wants_tls: bool) -> None:
        super().__init__()
        self._on_end = on_end
        self._wants_tls = wants_tls

    def release(self) -> None:
        """Free what a closing has left."""
        for sub in self._subs.values():
            if (task := getattr(sub, "_wait_for_msgs_task", None)) is not None:
                task.cancel()
        self._subs.clear()
        for writer in (getattr(self._transport, "_io_writer", None), getattr(self._transport, "_bare_io_writer", None)):
            if writer is not None:
                writer.transport.abort()

    @property
    def has_begun(self) -> bool:
        """Tell whether there has been a connection."""
        return self._transport is not None

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # A connection that breaks while something waits to be written ends this with an error, half done.
        try:
            with suppress(OSError):
                await super()._close(status, do_cbs)
        finally:
            self._on_end()

    async def _read_loop(self) -> None:
        try:
            await super()._read_loop()
        finally:
            self._on_end()

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            found = await super()._process_headers(headers)
        except Exception:  # the library's, of whatever it stumbled over
            return {UNREADABLE: "yes"}
        if headers and found is None and len(headers.strip()) > len(_FIRST_LINE):
            return {UNREADABLE: "yes"}
        return found

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        if self._transport is not None and self._pending:
            self._transport.write(b"".join(self._pending))
            self._pending, self._pending_data_size = [], 0
        await super()._send_ping(future)

    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if self._wants_tls and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise SecureConnWantedError
        transport = self._transport
        if transport is not None:
            # asyncio's writelines (3.12, 3.13) leaves the descriptor of a lost connection in the loop's selector,
            # where it breaks whatever gets the same number next; its write does not.
            transport.writelines = lambda payload: transport.write(b"".join(payload))  # type: ignore[method-assign]
        return super()._connect_command()

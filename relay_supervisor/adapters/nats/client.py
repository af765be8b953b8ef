"""nats-py's client, changed to report failures that it would hide.

1. The end of its connection, or only of its read loop, is always reported: the library ends its read loop silently on
   an internal error, and would stay connected without reading.
2. A header block that cannot be parsed yields a message that says so (`UNREADABLE`), not an error in the read loop or
   a message without its limits.
3. If TLS is required, nothing of ours, and so no credential, is sent before the connection has it: whether a server
   offers TLS is said in the clear, and can be forged.
4. Resources that a failed or stuck close left are released.
5. The pong that a flush and the draining of a subscription wait for confirms everything sent before: the library
   writes a ping ahead of its pending data.

It uses private parts of nats-py: `_close`, `_read_loop`, `_process_headers`, `_connect_command`, `_send_ping`,
`_subs`, `_pending` with its `_pending_data_size`, and `_transport` with its `_io_writer` and `_bare_io_writer`. All of
them exist in 2.11 to 2.16.
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
    """A client for one connection."""

    def __init__(self, on_end: Callable[[], None], *, wants_tls: bool) -> None:
        super().__init__()
        self._on_end = on_end
        self._wants_tls = wants_tls

    def release(self) -> None:
        """Release the resources that a close left."""
        for sub in self._subs.values():
            if (task := getattr(sub, "_wait_for_msgs_task", None)) is not None:
                task.cancel()
        self._subs.clear()
        for writer in (getattr(self._transport, "_io_writer", None), getattr(self._transport, "_bare_io_writer", None)):
            if writer is not None:
                writer.transport.abort()

    @property
    def has_transport(self) -> bool:
        """Return True if a connection was opened."""
        return self._transport is not None

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        # A connection that breaks while data is pending makes this fail halfway.
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
        except Exception:  # of any type: the library's parser fails in many ways
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
            # where it breaks the next connection with the same descriptor; write does not.
            transport.writelines = lambda payload: transport.write(b"".join(payload))  # type: ignore[method-assign]
        return super()._connect_command()

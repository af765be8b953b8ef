"""The writing half of a connection: lines are sent together, and a peer that does not read is noticed.

Lines written during one turn of the event loop leave in one system call, which costs more than most answers: at the end
of the turn, or when the bus has settled its publishes (`FlushQueue`). At most `_HELD` bytes wait for that: beyond it
the transport must see them, to report when its buffer is full.
"""

from __future__ import annotations

import asyncio

from relay_core.errors import Closed

BUFFERED = 1024 * 1024
"""Bytes that the transport buffers before the peer counts as not reading."""
_HELD = 64 * 1024


class FlushQueue:
    """The writers of all connections that hold lines."""

    def __init__(self) -> None:
        self._writers: list[LineWriter] = []

    def add(self, writer: LineWriter) -> None:
        """Flush a writer at the end of this turn of the loop."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self.flush)
        self._writers.append(writer)

    def flush(self) -> None:
        """Flush all of them now."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()


class LineWriter:
    """Send lines to a peer."""

    def __init__(self, queue: FlushQueue) -> None:
        self.closed = False
        self._queue = queue
        self._transport: asyncio.Transport
        self._lines: list[bytes] = []
        self._bytes = 0
        self._drained: asyncio.Future[None] | None = None
        """Set while the peer does not read."""

    def open(self, transport: asyncio.Transport) -> None:
        """Send to a transport."""
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFERED)

    @property
    def keeps_up(self) -> bool:
        """Return True if the peer reads what it is sent."""
        return self._drained is None and not self.closed

    async def drained(self) -> None:
        """Wait until the peer keeps up.

        Raises:
            Closed: if the connection is closed.
        """
        while self._drained is not None:
            await asyncio.shield(self._drained)
        if self.closed:
            raise Closed("the connection is closed")

    def write(self, line: bytes) -> None:
        """Send a line with the others of this turn of the loop."""
        if not self._lines:
            self._queue.add(self)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= _HELD:
            self.flush()

    def flush(self) -> None:
        """Send the waiting lines now."""
        if self._lines and not self.closed:
            self._transport.write(b"".join(self._lines))
        self._lines.clear()
        self._bytes = 0

    def pause(self) -> None:
        """Note that the transport's buffer is full."""
        self._drained = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Wake all that wait for the peer."""
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def close(self) -> None:
        """Note that the connection is lost: nothing more is sent."""
        self.closed = True
        self.resume()

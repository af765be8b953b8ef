"""The consumers of a mailbox: subscriptions, members of a pool, and the lanes of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from relay_core.storage.stored_message import StoredMessage

if TYPE_CHECKING:
    from relay_core.dispatch.slots import Slots
    from relay_core.dispatch.worker_pool import Pool


class Requeue(Exception):
    """A consumer did not take a message: it may be offered again, to the same consumer or another."""


class Ack:
    """How one consumer reports the end of a message, if it does not simply return.

    The first report counts. The acknowledgement of a message's last consumer records its completion.
    """

    __slots__ = ("_waiting", "error", "finished", "on_abandoned")

    def __init__(self) -> None:
        self.finished = False
        """Whether this consumer has finished."""
        self.error: Exception | None = None
        """Why it failed, or `Requeue`."""
        self.on_abandoned: Callable[[], None] | None = None
        """Called if the delivery ends before the consumer reports: it took too long, or the bus closes."""
        self._waiting: asyncio.Future[None] | None = None

    def __call__(self) -> None:
        """Acknowledge the message; its completion is recorded when this returns.

        Raises:
            OSError: if the completion cannot be recorded; the message is still in flight.
        """
        if not self.finished:
            self._record()
            self._finish(None)

    def soon(self) -> None:
        """Acknowledge the message; its completion is recorded soon, or as soon as the disk allows."""
        if not self.finished:
            self._finish(None)

    def fail(self, error: Exception) -> None:
        """Report a failure, or `Requeue`."""
        if not self.finished:
            self._finish(error)

    def abandon(self) -> None:
        """End the consumer's part without its report."""
        if not self.finished:
            self.finished = True
            if (on_abandoned := self.on_abandoned) is not None:
                on_abandoned()

    async def wait(self) -> None:
        """Return when the message is acknowledged, or raise the error of `fail`."""
        if not self.finished:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self.error is not None:
            raise self.error

    def _record(self) -> None:
        """Record the completion, if no other consumer is left."""
        raise NotImplementedError

    def _finish(self, error: Exception | None) -> None:
        self.error = error
        self.finished = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class Consumer(Protocol):
    """Handles the messages of mailboxes."""

    @property
    def name(self) -> str:
        """Return the name under which outcomes are listed."""
        ...

    @property
    def id(self) -> str:
        """Return an id that is unique among consumers of the same name."""
        ...

    @property
    def slots(self) -> Slots | None:
        """Return the limit of its in-flight messages over all mailboxes; None if unlimited or in a pool."""
        ...

    @property
    def pool(self) -> Pool | None:
        """Return the pool that it is a member of, if any."""
        ...

    @property
    def enforces_timeout(self) -> bool:
        """Return True if it ends deliveries that take too long by itself."""
        ...

    @property
    def hands_over(self) -> bool:
        """Return True if `deliver` may hand a message over, and needs no task for that."""
        ...

    def deliver(self, message: StoredMessage, ack: Ack) -> Coroutine[Any, Any, None] | None:
        """Handle one message; any exception except `Requeue` is a failure.

        Returns a coroutine that handles the message until it returns or raises; or None if the message is handed over,
        and `ack` reports its end. A consumer that answers a client calls `ack` first.
        """
        ...

"""The consumers of a mailbox: subscriptions, members of a pool, and the lanes of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from relay_core.messages.envelope import Envelope

if TYPE_CHECKING:
    from relay_core.dispatch.worker_pool import Pool


class Requeue(Exception):
    """A consumer did not take a message: it may be offered again, to the same consumer or another."""


class Completion:
    """The completion of one message, recorded by the last of its consumers."""

    __slots__ = ("pending", "record")

    def __init__(self, record: Callable[[], None], consumers: int = 1) -> None:
        self.record = record
        self.pending = consumers
        """Consumers that have not finished."""


class Ack:
    """Acknowledges a message for one consumer, before the consumer returns or answers a client.

    The acknowledgement of the last consumer records the completion of the message.
    """

    __slots__ = ("_completion", "finished")

    def __init__(self, completion: Completion) -> None:
        self._completion = completion  # no reference back: a cycle would keep each message until garbage collection
        self.finished = False
        """Whether this consumer has finished."""

    def __call__(self) -> None:
        """Acknowledge the message.

        Raises:
            OSError: if the completion cannot be recorded; the message is still in flight.
        """
        if not self.finished:
            if self._completion.pending == 1:
                self._completion.record()
            self.close()

    def close(self) -> None:
        """Mark this consumer as finished without recording anything."""
        if not self.finished:
            self.finished = True
            self._completion.pending -= 1


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
    def slots(self) -> asyncio.Semaphore | None:
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

    def deliver(self, envelope: Envelope, ack: Ack) -> Coroutine[Any, Any, None]:
        """Handle one message; any exception except `Requeue` is a failure.

        A consumer that answers a client calls `ack` first; for others it is enough to return.
        """
        ...

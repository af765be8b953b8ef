"""What a mailbox's messages are handed to: subscriptions, members of a pool, and the lanes of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from relay_core.messages.envelope import Envelope

if TYPE_CHECKING:
    from relay_core.dispatch.worker_pool import Pool


class Requeue(Exception):
    """A consumer did not take a message: it may be offered again, to the same one or another."""


class Ending:
    """The end of one message, which the last of its consumers writes down."""

    __slots__ = ("open", "write")

    def __init__(self, write: Callable[[], None], consumers: int = 1) -> None:
        self.write = write
        self.open = consumers
        """Consumers that are not through with the message."""


class End:
    """How a consumer says that it has handled a message, before it returns and before it answers a client.

    The end is written down at once if every other consumer of the message is through; else the last one writes it.
    """

    __slots__ = ("_ending", "over")

    def __init__(self, ending: Ending) -> None:
        self._ending = ending  # and not the other way: a cycle would keep each message until the collector comes
        self.over = False
        """Whether this consumer is through with the message."""

    def __call__(self) -> None:
        """Say it.

        Raises:
            OSError: if it cannot be written; the message is still in hand.
        """
        if not self.over:
            if self._ending.open == 1:
                self._ending.write()
            self.close()

    def close(self) -> None:
        """Be through with the message, and write nothing."""
        if not self.over:
            self.over = True
            self._ending.open -= 1


class Consumer(Protocol):
    """What a mailbox's messages are handed to."""

    @property
    def name(self) -> str:
        """Return what an outcome is listed under."""
        ...

    @property
    def id(self) -> str:
        """Return what tells it from others of the same name."""
        ...

    @property
    def slots(self) -> asyncio.Semaphore | None:
        """Return what bounds its messages in hand over all mailboxes, if anything does and it is no pool."""
        ...

    @property
    def pool(self) -> Pool | None:
        """Return whose messages it shares, if it shares any."""
        ...

    @property
    def keeps_time(self) -> bool:
        """Tell whether it ends by itself what takes too long."""
        ...

    def deliver(self, envelope: Envelope, end: End) -> Coroutine[Any, Any, None]:
        """Handle one message; whatever is raised is a failure, but for a `Requeue`.

        Whoever answers for it says `end` first; for others it is enough to return.
        """
        ...

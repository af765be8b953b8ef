"""What a mailbox's messages are handed to: subscriptions, members of a pool, and the lanes of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from relay_core.envelope import Envelope
from relay_core.mailbox import Mailbox

if TYPE_CHECKING:
    from relay_core.pools import Pool


class PutBack(Exception):
    """A consumer did not take a message: it may be offered again, to the same one or another."""


class End:
    """How a consumer says that it has handled a message, before it returns and before it answers anybody.

    The end is written down at once if every other consumer of the message is through; else it is when the last one is.
    """

    __slots__ = ("_all", "_write", "over")

    def __init__(self, write: Callable[[], None], all: list[End]) -> None:
        self._write = write
        self._all = all
        self.over = False
        """Whether this consumer is through with the message."""
        all.append(self)

    def __call__(self) -> None:
        """Say it.

        Raises:
            OSError: if it cannot be written; the message is still in hand.
        """
        if not self.over:
            if all(one.over for one in self._all if one is not self):
                self._write()
            self.over = True


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
        """Handle one message; whatever is raised is a failure, but for a `PutBack`.

        Whoever answers for it says `end` first; for others it is enough to return.
        """
        ...


class Consumers(Protocol):
    """Who handles a mailbox's messages, and for how long."""

    def __call__(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        """Return the consumers and the timeout of each in seconds."""
        ...

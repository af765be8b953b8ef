"""The targets of a message, and the interface of adapters that the pipeline uses (`relay_core.adapters`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from relay_core.storage.mailbox import Mailbox


class Target:
    """A mailbox that a message is sent to."""

    __slots__ = ("adapter", "address", "awaited", "mailbox", "weight")

    def __init__(
        self,
        mailbox: Mailbox,
        *,
        weight: int = 1,
        adapter: str | None = None,
        awaited: float | None = None,
        address: str | None = None,
    ) -> None:
        self.mailbox = mailbox
        self.address = address
        """The subject of this target's copy, if it is not the publish's own."""
        self.weight = weight
        """How many targets it counts for: the subscriptions behind a mailbox without endpoint."""
        self.adapter = adapter
        self.awaited = awaited
        """Seconds the publish waits for the target's answer; None if storing is enough."""


OpenTarget = Callable[[], Awaitable[Target]]
"""Creates the mailbox of a target that has none yet."""
OpenMailbox = Callable[[str, str], Awaitable[Mailbox]]
"""Returns the mailbox of a subject and a kind, created if there is none."""


class AdapterRoute(Protocol):
    """A running adapter, as a target of messages."""

    @property
    def mailbox(self) -> Mailbox:
        """Return the adapter's main mailbox."""
        ...

    def find_mailbox(self, subject: str) -> Mailbox | None:
        """Return the mailbox for messages of a subject, if it exists."""
        ...

    def target(self, subject: str, address: str | None = None) -> Target | OpenTarget:
        """Return the target of a message, or a function that creates its mailbox first."""
        ...


class AdapterRouting(Protocol):
    """Finds the adapters that take a message, and recognises the subjects of people."""

    def matching(self, subject: str, origin: str | None = None) -> Sequence[AdapterRoute]:
        """Return the adapters that take a subject's messages, highest priority first, without their origin."""
        ...

    def is_person(self, subject: str) -> bool:
        """Return True if a subject is a person's, so that a sender needs a binding to it."""
        ...

    def is_chat_inbound(self, sender: str, subject: str, origin: str | None) -> bool:
        """Return True for a person's message that its adapter brings in from a chat."""
        ...

    def has(self, mailbox: Mailbox) -> bool:
        """Return True if the adapter that a mailbox belongs to is running, whatever its state."""
        ...

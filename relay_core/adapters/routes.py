"""Which adapters take a message, and which adapter a sender or a mailbox belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay_core.dispatch.consumer import Consumer
from relay_core.messages.subjects import ADAPTER_PREFIX, adapter_of
from relay_core.messages.trie import SubjectTrie
from relay_core.storage.mailbox import Mailbox

if TYPE_CHECKING:
    from relay_core.adapters.host import AdapterHost


class AdapterRoutes:
    """The running adapters, found by id, subject, sender and mailbox; implements `pipeline.routing.AdapterRouting`."""

    def __init__(self) -> None:
        self.hosts: dict[str, AdapterHost] = {}
        """By the adapter's id."""
        self._patterns: SubjectTrie[AdapterHost] = SubjectTrie()
        self._senders: SubjectTrie[AdapterHost] = SubjectTrie()
        self._people = 0
        """Adapters whose subjects are people."""

    def add(self, host: AdapterHost) -> None:
        """Route messages to an adapter."""
        self.hosts[host.name] = host
        self._people += host.shape.bound
        for pattern in host.shape.patterns:
            self._patterns.add(pattern, host)
        for pattern in host.shape.senders:
            self._senders.add(pattern, host)

    def remove(self, host: AdapterHost) -> None:
        """Route no more messages to an adapter."""
        del self.hosts[host.name]
        self._people -= host.shape.bound
        for pattern in host.shape.patterns:
            self._patterns.remove(pattern, host)
        for pattern in host.shape.senders:
            self._senders.remove(pattern, host)

    def matching(self, subject: str, origin: str | None = None) -> list[AdapterHost]:
        """Return the adapters that take a subject's messages, highest priority first, without their origin."""
        if not self.hosts:
            return []
        hosts = {host.name: host for host in self._patterns.match(subject)}
        if origin is not None:
            hosts.pop(origin, None)
        return sorted(hosts.values(), key=_by_priority)

    def consumers(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        """Return the lane that handles a mailbox's next message, if its adapter can take one, and its timeout."""
        host = self.hosts.get(adapter_of(mailbox.subject))
        return host.lane(mailbox).consumers() if host is not None else ((), 0.0)

    def has(self, mailbox: Mailbox) -> bool:
        """Return True if the adapter that a mailbox belongs to is running, whatever its state."""
        return adapter_of(mailbox.subject) in self.hosts

    def is_chat_inbound(self, sender: str, subject: str, origin: str | None) -> bool:
        """Return True for a person's message that its adapter brings in from a chat."""
        return origin is not None and sender == subject and self.owner_of_sender(sender) == origin

    def is_person(self, subject: str) -> bool:
        """Return True if a subject is a person's, so that a sender needs a binding to it."""
        return self._people > 0 and any(host.shape.bound for host in self._patterns.match(subject))

    def owner_of_sender(self, sender: str) -> str | None:
        """Return the id of the adapter that alone publishes as a sender, if one does.

        Subjects below ``relay.adapter.{id}`` belong to that adapter, whether or not it runs.
        """
        if sender.startswith(ADAPTER_PREFIX):
            return adapter_of(sender)
        if not self._senders:
            return None
        owners = self._senders.match(sender)
        return min(owners, key=_by_priority).name if owners else None


def _by_priority(host: AdapterHost) -> tuple[int, str]:
    return -host.shape.priority, host.name

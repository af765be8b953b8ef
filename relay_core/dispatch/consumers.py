"""The consumers of each mailbox: the lane of an adapter, or the subscriptions that match its subject."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay_core.dispatch.consumer import Consumer
from relay_core.dispatch.subscriptions import Subscriptions
from relay_core.messages.delivery import TargetKind
from relay_core.storage.config_file import LiveConfig
from relay_core.storage.mailbox import Mailbox

TimedConsumers = tuple[Sequence[Consumer], float]
"""The consumers of a mailbox, and the timeout of each in seconds."""


class Consumers:
    """Find a mailbox's consumers; subscriptions are cached until one is added or removed."""

    def __init__(
        self, subscriptions: Subscriptions, lanes: Callable[[Mailbox], TimedConsumers], settings: LiveConfig
    ) -> None:
        self._subscriptions = subscriptions
        self._lanes = lanes
        self._settings = settings
        self._found: dict[str, tuple[int, Sequence[Consumer]]] = {}
        """By mailbox, with the version of the subscriptions."""

    def __call__(self, mailbox: Mailbox) -> TimedConsumers:
        """Return a mailbox's consumers and their timeout."""
        if mailbox.about.kind == TargetKind.ADAPTER:
            return self._lanes(mailbox)
        timeout = self._settings.config.dispatch.handler_timeout_ms / 1000
        version = self._subscriptions.version
        cached = self._found.get(mailbox.hash)
        if cached is not None and cached[0] == version:
            return cached[1], timeout
        found = self._subscriptions.match(mailbox.subject)
        self._found[mailbox.hash] = (version, found)
        return found, timeout

    def forget(self, mailbox: Mailbox) -> None:
        """Drop the cached consumers of a mailbox."""
        self._found.pop(mailbox.hash, None)

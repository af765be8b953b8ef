"""Signals: ephemeral notices such as typing, presence and pressure.

1. A signal reaches the current listeners, in process, and is never stored.
2. A handler is a plain callable ``handler(subject, signal)``. If it raises, or returns a coroutine, which would never
   be awaited, that is logged; the other handlers and the emitter continue.
3. A closed subscription receives nothing more, not even the signal that is being emitted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from inspect import isawaitable, iscoroutine
from typing import Any

from relay_core.messages.base import Instant, WireModel
from relay_core.messages.subjects import validate_subject
from relay_core.messages.trie import SubjectTrie

logger = logging.getLogger(__name__)


class SignalType(StrEnum):
    """The type of a signal."""

    TYPING = "typing"
    PRESENCE = "presence"
    READ_RECEIPT = "read_receipt"
    DELIVERY_RECEIPT = "delivery_receipt"
    PROGRESS = "progress"
    BACKPRESSURE = "backpressure"
    PROBLEM = "problem"
    """From the bus: an operator's file or an adapter's entry cannot be used, or can be used again."""


class Signal(WireModel):
    """An ephemeral notice about an endpoint."""

    type: SignalType
    state: str
    """Depends on the type, such as ``started``; for `backpressure`, ``warning`` or ``critical``; for `problem`,
    ``error`` or ``ok``."""
    endpoint_subject: str
    """The endpoint it is about."""
    timestamp: Instant
    """An ISO 8601 instant."""
    data: Any = None
    """Depends on the type; for `backpressure`, `pressure`, `currentSize` and `maxMailboxSize`; for `problem`, `file`,
    `adapter` if it is about one, and `problem` (the present one) or `was` (the one that is over)."""


SignalHandler = Callable[[str, Signal], object]


class SignalSubscription:
    """A handler's subscription, until it is closed."""

    __slots__ = ("_hub", "closed", "handler", "pattern")

    def __init__(self, hub: SignalHub, pattern: str, handler: SignalHandler) -> None:
        self._hub = hub
        self.pattern = pattern
        self.handler = handler
        self.closed = False

    def close(self) -> None:
        """Stop listening; closing again does nothing."""
        if not self.closed:
            self.closed = True
            self._hub.discard(self)


class SignalHub:
    """Pass signals from emitters to the handlers whose pattern matches."""

    __slots__ = ("_listening",)

    def __init__(self) -> None:
        self._listening: SubjectTrie[SignalSubscription] = SubjectTrie()

    def __len__(self) -> int:
        return len(self._listening)

    def on(self, pattern: str, handler: SignalHandler) -> SignalSubscription:
        """Call the handler for every signal whose subject matches the pattern, until the subscription is closed.

        Raises:
            InvalidSubject: if the pattern breaks the naming rules.
        """
        validate_subject(pattern, allow_wildcards=True)
        subscription = SignalSubscription(self, pattern, handler)
        self._listening.add(pattern, subscription)
        return subscription

    def emit(self, subject: str, signal: Signal) -> None:
        """Pass a signal to the handlers of its subject.

        Raises:
            InvalidSubject: if the subject breaks the naming rules or is a pattern.
        """
        validate_subject(subject)
        for subscription in self._listening.match(subject):
            if subscription.closed:
                continue
            try:
                result = subscription.handler(subject, signal)
            except Exception:
                logger.exception("signal handler for %s failed on %s", subscription.pattern, subject)
                continue
            if result is not None and isawaitable(result):
                if iscoroutine(result):
                    result.close()
                logger.error(
                    "signal handler for %s returned an awaitable on %s: use a plain function, and start a task in it "
                    "if needed",
                    subscription.pattern,
                    subject,
                )

    def discard(self, subscription: SignalSubscription) -> None:
        """Remove a closed subscription; `SignalSubscription.close` calls this."""
        self._listening.remove(subscription.pattern, subscription)

"""Signals: what is worth saying now and not worth keeping, such as typing, presence and pressure.

1. A signal reaches whoever listens at that moment, in process, and never touches disk.
2. A handler is a plain callable ``handler(subject, signal)``. One that raises is logged and stops neither the other
   handlers nor the emitter; so is one that returns a coroutine, which nobody would await.
3. A subscription that is closed gets nothing more, not even the signal that is being emitted at that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any

from pydantic import field_validator

from relay_core.clock import parse_iso
from relay_core.messages.base import WireModel
from relay_core.messages.subjects import validate_subject
from relay_core.messages.trie import SubjectTrie

logger = logging.getLogger(__name__)


class SignalType(StrEnum):
    """What a signal is about."""

    TYPING = "typing"
    PRESENCE = "presence"
    READ_RECEIPT = "read_receipt"
    DELIVERY_RECEIPT = "delivery_receipt"
    PROGRESS = "progress"
    BACKPRESSURE = "backpressure"


class Signal(WireModel):
    """One passing remark about an endpoint."""

    type: SignalType
    state: str
    """A word that belongs to the type, such as ``started``; of `backpressure`, ``warning`` or ``critical``."""
    endpoint_subject: str
    """Whom it is about."""
    timestamp: str
    """When it was said, as an ISO 8601 instant."""
    data: Any = None
    """Whatever belongs to the type; of `backpressure`, `pressure`, `currentSize` and `maxMailboxSize`."""

    @field_validator("timestamp")
    @classmethod
    def _timestamp_is_instant(cls, value: str) -> str:
        parse_iso(value)
        return value


SignalHandler = Callable[[str, Signal], object]


class SignalSubscription:
    """A handler's place in the hub, until it is closed."""

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

    def __enter__(self) -> SignalSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
        """Hand a signal to everyone who listens to the subject.

        Raises:
            InvalidSubject: if the subject breaks the naming rules or is a pattern.
        """
        validate_subject(subject)
        for subscription in self._listening.match(subject):
            if subscription.closed:
                continue
            try:
                answer = subscription.handler(subject, signal)
            except Exception:
                logger.exception("signal handler for %s failed on %s", subscription.pattern, subject)
                continue
            if answer is not None and isawaitable(answer):
                if iscoroutine(answer):
                    answer.close()
                logger.error(
                    "signal handler for %s returned an awaitable on %s: a signal handler must be a plain function, "
                    "start a task in it instead",
                    subscription.pattern,
                    subject,
                )

    def discard(self, subscription: SignalSubscription) -> None:
        """Forget a closed subscription; `SignalSubscription.close` calls this."""
        self._listening.remove(subscription.pattern, subscription)

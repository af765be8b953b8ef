"""Whom the tools act for: what it has in hand, what it has been shown, and what it follows from.

A tool is a generator that yields what it waits for, and returns what to tell the model:

1. `Ask` is a question to the supervisor: the generator goes on with the answer, or with `Refused` or `Unreachable`.
2. `Say` is the result itself: the generator goes on once it has been written out, so that what was shown can be
   completed after it was shown and never before.
"""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.handled import Handled, Seen, Unknown
from relay_supervisor.agents.light.refusals import Failure
from relay_supervisor.agents.light.upstream import Ask

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    Steps = Generator[Ask | "Say", Any, str]
    Arguments = dict[str, Any]


class Say:
    """A result to be written out before the tool is over."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        self.text = text
        self.is_error = is_error


class Agent:
    """Whom the tools act for, and what it has in hand."""

    def __init__(self, subject: str, monotonic: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self.subject = subject
        self.monotonic = monotonic
        self.now_ms = now_ms
        self.handled = Handled(now_ms)
        self.held: dict[str, None] = {}
        """Messages that it has claimed and not acknowledged, in their order."""
        self.unseen: list[dict[str, Any]] = []
        """Messages that were claimed for a call which had ended meanwhile: nobody has seen them yet."""

    def claim(self, ids: list[str], *, is_seen: bool = True) -> Ask:
        """Return the question that takes messages; what it takes when its call has ended is kept for the next."""
        question = Ask("inbox.claim", {"subject": self.subject, "ids": ids})
        question.keep = self._hold if is_seen else self._keep_unseen
        return question

    def _hold(self, claimed: dict[str, Any]) -> None:
        self.held.update(dict.fromkeys(one["id"] for one in claimed["messages"]))

    def _keep_unseen(self, claimed: dict[str, Any]) -> None:
        self.unseen += claimed["messages"]

    def read(self, envelope: dict[str, Any], *, handle: bool = True) -> None:
        """Remember a message that was shown to the model."""
        payload = envelope.get("payload")
        payload = payload if isinstance(payload, dict) else {}
        about = Seen(
            _text(payload.get("correlationId")),
            _text(payload.get("conversationId")),
            envelope.get("budget"),
            (str(envelope.get("from")), str(envelope.get("replyTo"))),
        )
        note = self.handled.read if handle else self.handled.see
        note(envelope["id"], about)

    def parent(self, arguments: Arguments) -> str | None:
        """Return the message that a send follows from.

        Raises:
            Failure: if the model names one that it has not been shown.
        """
        if arguments.get("new_topic"):
            return None
        try:
            return self.handled.parent(arguments.get("in_reply_to"))
        except Unknown as unknown:
            raise Failure(
                f"in_reply_to must be the id of a message that you were shown, such as {unknown}: see relay_inbox"
            ) from None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

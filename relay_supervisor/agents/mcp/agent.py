"""The state of the agent that the tools act for: claimed messages, and messages that it has seen.

A tool is a generator that yields what it waits for and returns the text for the model:

1. `Ask` is a request to the supervisor: the generator resumes with its result, or with `Refused` or `Unreachable`.
2. `Say` is the tool's result: the generator resumes after it is written, so that a message is completed only after it
   was shown.
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
    """A result that is written before the tool ends."""

    def __init__(self, text: str, *, is_error: bool = False) -> None:
        self.text = text
        self.is_error = is_error


class Agent:
    """The agent of this session."""

    def __init__(self, subject: str, monotonic: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self.subject = subject
        self.monotonic = monotonic
        self.now_ms = now_ms
        self.handled = Handled(now_ms)
        self.held: dict[str, None] = {}
        """Messages claimed and not acknowledged, in order."""
        self.unseen: list[dict[str, Any]] = []
        """Messages claimed for a call that had ended before they arrived: the model has not seen them."""

    def claim(self, ids: list[str], *, is_seen: bool = True) -> Ask:
        """Return a request that claims messages; if its call ends first, they are kept for the next call."""
        request = Ask("inbox.claim", {"subject": self.subject, "ids": ids})
        request.keep = self._hold if is_seen else self._keep_unseen
        return request

    def _hold(self, claimed: dict[str, Any]) -> None:
        self.held.update(dict.fromkeys(message["id"] for message in claimed["messages"]))

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
        """Return the parent of a send.

        Raises:
            Failure: if the model names a message that it has not seen.
        """
        if arguments.get("new_topic"):
            return None
        try:
            return self.handled.parent(arguments.get("in_reply_to"))
        except Unknown as unknown:
            raise Failure(
                f"in_reply_to must be the id of a message that you have seen, such as {unknown}: see relay_inbox"
            ) from None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

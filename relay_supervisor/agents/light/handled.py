"""The loop guard: which message an agent is handling, so that its sends inherit that message's budget.

The bus stops a conversation whose budget is used up, if it knows the parent of each message. A model does not always
name it, so:

1. The parent of a send without one is the newest message that the session has read (claimed, shown by `relay_inbox`, or
   shown by the hook at a stop).
2. An acknowledgement does not reset the budget: for `AFTERWARDS_MS` after it, sends still have that parent.
3. A person's prompt starts a new conversation. The message's ttl ends its conversation, too.
4. While a message is handled, a send cannot name a parent that this session has not seen: an invented id has no budget.
5. The reply to `relay_ask` is seen, not handled: the next question has the same parent as the one before.
"""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

AFTERWARDS_MS = 5 * 60 * 1000
_MAX_SEEN = 1000
_MAX_HANDLED = 200


class Unknown(Exception):
    """The named parent was not seen in this session."""


class Seen:
    """What is remembered of a message that the model has seen."""

    def __init__(
        self,
        correlation_id: str | None = None,
        conversation_id: str | None = None,
        budget: dict[str, Any] | None = None,
        answers_to: tuple[str, ...] = (),
    ) -> None:
        self.correlation_id = correlation_id
        self.conversation_id = conversation_id
        self.budget = budget
        """Its budget on arrival; None if unknown."""
        self.answers_to = answers_to
        """The subjects that a reply to it may go to."""


class Handled:
    """The messages that the agent of this session is handling."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until: dict[str, int | None] = {}
        """When each message stops being handled, in reading order; None: unknown."""
        self._seen: dict[str, Seen] = {}

    def see(self, message_id: str, about: Seen | None = None) -> None:
        """Remember a message that the model has seen."""
        known = self._seen.pop(message_id, None)
        self._seen[message_id] = about or known or Seen()
        while len(self._seen) > _MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def about(self, message_id: str | None) -> Seen:
        """Return what is remembered of a message."""
        return self._seen.get(message_id or "", Seen())

    def read(self, message_id: str, about: Seen | None = None) -> None:
        """Start handling a message."""
        self.see(message_id, about)
        ttl = about.budget.get("ttl") if about is not None and about.budget is not None else None
        if self._until.get(message_id) is None:
            self._until[message_id] = ttl
            while len(self._until) > _MAX_HANDLED:
                del self._until[next(iter(self._until))]

    def acknowledged(self, message_id: str) -> None:
        """Stop handling a message, after the grace period of rule 2."""
        if message_id in self._until:
            afterwards = self._now_ms() + AFTERWARDS_MS
            ttl = self._until[message_id]
            self._until[message_id] = afterwards if ttl is None else min(ttl, afterwards)

    def prompted(self, shown: Iterable[str] = ()) -> None:
        """Start a new conversation, because a person has spoken."""
        self._until.clear()
        for message_id in shown:
            self.see(message_id)

    def parent(self, named: str | None = None) -> str | None:
        """Return the parent of a send.

        Raises:
            Unknown: if the named message was not seen, while another is being handled.
        """
        now = self._now_ms()
        self._until = {id: until for id, until in self._until.items() if until is None or now <= until}
        newest = next(reversed(self._until), None)
        if named is None:
            return newest
        if named not in self._seen and newest is not None:
            raise Unknown(newest)
        return named

"""The loop guard: which message an agent is handling, so that what it sends inherits that message's budget.

The bus stops a conversation whose budget is used up, if it knows what follows from what. A model does not always say,
so:

1. A send names its parent. If it does not, it follows from the newest message that the session has read (claimed,
   shown by `relay_inbox`, or shown by the hook that keeps an agent from stopping).
2. An acknowledgement does not wash a budget off: for `AFTERWARDS_MS` after it what is sent still follows from that
   message.
3. A person's prompt ends all that: what follows is a new conversation. So does the message's own end (its ttl).
4. A message that this session has not seen cannot take the place of one that it is handling: a made-up id has no
   budget.
5. The answer that an agent has waited for by asking is seen, not handled: what it asks next follows from what it was
   handling when it asked.
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
    """A parent was named that this session has not seen."""


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
        """What it had left when it came; None if nobody has told."""
        self.answers_to = answers_to
        """Where an answer to it goes."""


class Handled:
    """What the agent of this session is handling."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until: dict[str, int | None] = {}
        """Until when each message is being handled, in the order in which they were read; None: nobody knows."""
        self._seen: dict[str, Seen] = {}

    def see(self, message_id: str, about: Seen | None = None) -> None:
        """Remember that the model knows of a message."""
        known = self._seen.pop(message_id, None)
        self._seen[message_id] = about or known or Seen()
        while len(self._seen) > _MAX_SEEN:
            del self._seen[next(iter(self._seen))]

    def about(self, message_id: str | None) -> Seen:
        """Return what is remembered of a message."""
        return self._seen.get(message_id or "", Seen())

    def read(self, message_id: str, about: Seen | None = None) -> None:
        """Take it that the agent handles a message from now on."""
        self.see(message_id, about)
        ttl = about.budget.get("ttl") if about is not None and about.budget is not None else None
        if self._until.get(message_id) is None:
            self._until[message_id] = ttl
            while len(self._until) > _MAX_HANDLED:
                del self._until[next(iter(self._until))]

    def acknowledged(self, message_id: str) -> None:
        """Take it that the agent is done with a message, but for what it may still say because of it."""
        if message_id in self._until:
            afterwards = self._now_ms() + AFTERWARDS_MS
            ttl = self._until[message_id]
            self._until[message_id] = afterwards if ttl is None else min(ttl, afterwards)

    def prompted(self, shown: Iterable[str] = ()) -> None:
        """Take it that a person has spoken."""
        self._until.clear()
        for message_id in shown:
            self.see(message_id)

    def parent(self, named: str | None = None) -> str | None:
        """Return the message that a send follows from.

        Raises:
            Unknown: if a message is named that was not seen, while another is being handled.
        """
        now = self._now_ms()
        self._until = {id: until for id, until in self._until.items() if until is None or now <= until}
        newest = next(reversed(self._until), None)
        if named is None:
            return newest
        if named not in self._seen and newest is not None:
            raise Unknown(newest)
        return named

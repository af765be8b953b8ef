"""Reply mailboxes: private mailboxes below ``relay.reply.``, for answers to the questions that name them.

1. No pattern matches one: neither a broadcast nor a subscription. Its messages go only to its owner, not to adapters.
2. An answer is accepted only from a recipient of a question, which is a message whose `reply_to` is the mailbox: a
   sender with the name of a target; the adapter that the question was delivered to; or a reader that received the
   question under another name (a pool, a pattern), if the answer names the question's id (`parent_id`, or
   `correlationId` in the payload). An answer that names a question is checked against that question alone.
3. The bus's own failure notices are accepted.
4. Questions are known in memory only. They are noted when they are stored and again when they are delivered, so that a
   question that was waiting or in flight during a restart can be answered afterwards. A recipient that finished a
   question before a restart can no longer answer it.
5. Memory is bounded: `_PER_MAILBOX` questions of a mailbox, the oldest dropped first, and `_CLOSED` mailboxes that are
   not endpoints of this bus (the owner is gone, or on another bus).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import ADAPTER_PREFIX, REPLY_PREFIX, adapter_of

_PER_MAILBOX = 64
_CLOSED = 10_000


class _Question:
    """The recipients of one question."""

    __slots__ = ("names", "readers")

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Subjects that it was sent to."""
        self.readers: set[str] = set()
        """Clients and adapters that it was delivered to."""


class ReplyRules:
    """The questions that name reply mailboxes, and their recipients."""

    def __init__(self, is_endpoint: Callable[[str], bool]) -> None:
        self._is_endpoint = is_endpoint
        self._open: dict[str, OrderedDict[str, _Question]] = {}
        self._closed: OrderedDict[str, OrderedDict[str, _Question]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._closed)

    def sent(self, mailbox: str, envelope_subject: str, message_id: str, reply_to: str | None) -> None:
        """Note that a message was stored in, or delivered from, the mailbox of a subject."""
        if reply_to is None or not reply_to.startswith(REPLY_PREFIX):
            return
        question = self._question(reply_to, message_id)
        question.names.add(envelope_subject)
        if mailbox.startswith(ADAPTER_PREFIX):
            question.readers.add(adapter_reader(adapter_of(mailbox)))
        else:
            question.names.add(mailbox)

    def handed(self, mailbox: str, envelope: Envelope) -> None:
        """Note that a message is being delivered to a consumer of a mailbox."""
        self.sent(mailbox, envelope.subject, envelope.id, envelope.reply_to)

    def read(self, envelope: Envelope, reader: str) -> None:
        """Note which client has a message in flight."""
        if envelope.reply_to is not None and envelope.reply_to.startswith(REPLY_PREFIX):
            self._question(envelope.reply_to, envelope.id).readers.add(reader)

    def may_answer(
        self, mailbox: str, sender: str, reader: str | None, *, parent_id: str | None = None, payload: Any = None
    ) -> bool:
        """Return True if a publish to a reply mailbox answers a question that its publisher received."""
        questions = self._open.get(mailbox) or self._closed.get(mailbox)
        if questions is None:
            return False
        named = [id for id in _named(parent_id, payload) if id in questions]
        for question in (questions[id] for id in named or questions):
            if sender in question.names:
                return True
            if reader is None or reader in question.readers:  # None is the program that the bus runs in
                if named or (reader is not None and reader.startswith(ADAPTER_PREFIX)):
                    return True
        return False

    def ended(self, mailbox: str) -> None:
        """Note that a reply mailbox is no longer an endpoint; a late answer is still recognised for a while."""
        questions = self._open.pop(mailbox, None)
        if questions is not None:
            self._keep(mailbox, questions)

    def _question(self, mailbox: str, message_id: str) -> _Question:
        questions = self._open.get(mailbox)
        if questions is None:
            questions = self._closed.pop(mailbox, None) or OrderedDict()
            if self._is_endpoint(mailbox):
                self._open[mailbox] = questions
            else:
                self._keep(mailbox, questions)
        question = questions.get(message_id)
        if question is None:
            question = questions[message_id] = _Question()
            if len(questions) > _PER_MAILBOX:
                questions.popitem(last=False)
        return question

    def _keep(self, mailbox: str, questions: OrderedDict[str, _Question]) -> None:
        self._closed[mailbox] = questions
        if len(self._closed) > _CLOSED:
            self._closed.popitem(last=False)


def adapter_reader(adapter_id: str) -> str:
    """Return the name of an adapter as a reader."""
    return f"{ADAPTER_PREFIX}{adapter_id}"


def _named(parent_id: str | None, payload: Any) -> list[str]:
    """Return the ids of the messages that a publish says it answers."""
    found = [parent_id, getattr(payload, "correlation_id", None)]
    if isinstance(payload, dict):
        found.append(payload.get("correlationId"))
    return [id for id in found if isinstance(id, str)]

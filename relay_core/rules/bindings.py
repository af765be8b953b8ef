"""Bindings: which agent receives a chat's messages, and which agents may write to a person.

1. A binding names chats by a pattern and one agent by its subject. A person's message goes to the agent of the first
   matching binding, in file order; the message's `reply_to` is the chat, so that the answer returns there.
2. An agent may write to a person only through its binding to that chat. The bus and the adapters may too, to report
   failures.
3. ``start`` says who may begin a conversation: the ``chat`` (the agent cannot write first), the ``agent`` (the person
   cannot write first), or ``both``. Once it has begun, both may write.
4. Conversations that have begun are kept in a file (storage/conversations_file.py), so that an answer delayed by a
   restart is still allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict

from relay_core.messages.base import Pattern, Subject, WireModel
from relay_core.messages.subjects import is_pattern, matches_pattern

Conversation = tuple[str, str]
"""The subjects of a chat and of an agent."""


class Binding(WireModel):
    """One agent and the chats it talks with."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    chat: Pattern
    """A pattern of the subjects of chats, such as ``relay.human.telegram.tg.*``."""
    agent: Subject
    """The agent's subject."""
    start: Literal["chat", "agent", "both"] = "chat"
    """Who may begin a conversation."""


class Bindings:
    """The bindings in force, and the conversations that have begun."""

    def __init__(self) -> None:
        self._bindings: tuple[Binding, ...] = ()
        self.begun: set[Conversation] = set()

    def replace(self, bindings: Sequence[Binding]) -> None:
        """Replace the bindings in force; conversations that have begun stay open."""
        self._bindings = tuple(bindings)

    def all(self) -> list[Binding]:
        """Return the bindings in force, in their order."""
        return list(self._bindings)

    def route(self, chat: str) -> Binding | None:
        """Return the binding whose agent receives the messages of a chat."""
        for binding in self._bindings:
            if matches_pattern(chat, binding.chat) and (binding.start != "agent" or self._has_begun(chat, binding)):
                return binding
        return None

    def find(self, sender: str, chat: str) -> Binding | str:
        """Return the binding by which a sender may write to a person, or why it may not."""
        bound = [
            binding for binding in self._bindings if binding.agent == sender and matches_pattern(chat, binding.chat)
        ]
        for binding in bound:
            if binding.start != "chat" or self._has_begun(chat, binding):
                return binding
        if bound:
            return f"{sender} is bound to {chat}, but the chat has to write first ('start' of its binding is 'chat')"
        return f"{sender} is not bound to {chat}: add a binding to adapters.json if it may write there"

    def people(self, agent: str) -> list[str]:
        """Return the people an agent may write to: those bound by name, and those with a conversation."""
        own = {binding.chat for binding in self._bindings if binding.agent == agent}
        named = {chat for chat in own if not is_pattern(chat)}
        begun = {chat for chat, with_agent in self.begun if with_agent == agent}
        return sorted(chat for chat in named | begun if isinstance(self.find(agent, chat), Binding))

    def must_begin(self, chat: str, binding: Binding) -> bool:
        """Return True if a message through this binding begins a conversation that must be recorded."""
        return binding.start != "both" and not self._has_begun(chat, binding)

    def begin(self, chat: str, binding: Binding) -> None:
        """Record that a conversation has begun."""
        self.begun.add((chat, binding.agent))

    def _has_begun(self, chat: str, binding: Binding) -> bool:
        return (chat, binding.agent) in self.begun

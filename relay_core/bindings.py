"""Bindings: which agent a chat's messages go to, and which agents may write to a person.

1. A binding names chats by a pattern and one agent by its subject. What a person writes goes to the agent of the
   first binding, in the operator's order, that takes it; the message's `reply_to` is the chat, so the answer finds it.
2. An agent may write to a person only through a binding of its own to that chat; nobody else may, but for the bus and
   the adapters themselves, who have failures to tell.
3. ``start`` says who may begin: the ``chat`` (so nobody is written to who has not written first), the ``agent``
   (so nobody can wake it who has not been written to), or ``both``. Once begun, both may write.
4. What has begun is kept in a file, so an answer that a restart has delayed finds its chat open. A file that
   cannot be written is logged and costs the memory of it at the next start; it fails no message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import orjson
from pydantic import ConfigDict

from relay_core.errors import StorageError
from relay_core.files import atomic_write
from relay_core.model import Pattern, Subject, WireModel
from relay_core.own_files import read_own
from relay_core.subjects import is_pattern, matches_pattern

logger = logging.getLogger(__name__)


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

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bindings: tuple[Binding, ...] = ()
        self._begun: set[tuple[str, str]] = set()
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read which conversations have begun. Blocks."""
        try:
            found = orjson.loads(read_own(self._path))
            self._begun = {(str(chat), str(agent)) for chat, agent in found}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read, so every conversation has yet to begin: %s", self._path, error)

    def replace(self, bindings: Sequence[Binding]) -> None:
        """Put other bindings in force; what has begun stays begun."""
        self._bindings = tuple(bindings)

    def all(self) -> list[Binding]:
        """Return the bindings in force, in their order."""
        return list(self._bindings)

    def route(self, chat: str) -> Binding | None:
        """Return the binding whose agent gets what comes in from a chat."""
        for binding in self._bindings:
            if matches_pattern(chat, binding.chat) and (binding.start != "agent" or self._has_begun(chat, binding)):
                return binding
        return None

    def find(self, sender: str, chat: str) -> Binding | str:
        """Return the binding by which a sender may write to a person, or why it may not."""
        bound = [one for one in self._bindings if one.agent == sender and matches_pattern(chat, one.chat)]
        for binding in bound:
            if binding.start != "chat" or self._has_begun(chat, binding):
                return binding
        if bound:
            return f"{sender} is bound to {chat}, but the chat has to write first ('start' of its binding is 'chat')"
        return f"{sender} is not bound to {chat}: add a binding to adapters.json if it may write there"

    def people(self, agent: str) -> list[str]:
        """Return the persons to whom an agent may write: those named one by one, and those it has talked with."""
        named = {one.chat for one in self._bindings if one.agent == agent and not is_pattern(one.chat)}
        begun = {chat for chat, with_agent in self._begun if with_agent == agent}
        return sorted(chat for chat in named | begun if isinstance(self.find(agent, chat), Binding))

    def must_begin(self, chat: str, binding: Binding) -> bool:
        """Tell whether a message by this binding begins a conversation that has to be remembered."""
        return binding.start != "both" and not self._has_begun(chat, binding)

    async def begin(self, chat: str, binding: Binding) -> None:
        """Remember that a conversation has begun."""
        self._begun.add((chat, binding.agent))
        async with self._writing:
            data = orjson.dumps(sorted(self._begun))
            try:
                await asyncio.to_thread(atomic_write, self._path, data)
            except StorageError as error:
                logger.error("that %s and %s talk is not remembered: %s", chat, binding.agent, error.message)

    def _has_begun(self, chat: str, binding: Binding) -> bool:
        return (chat, binding.agent) in self._begun

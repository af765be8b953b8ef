"""The conversations between chats and agents that have begun (rules/bindings.py), kept over a restart.

A file that cannot be written is logged: after the next start the conversation has yet to begin. It fails no message.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import orjson

from relay_core.errors import StorageError
from relay_core.rules.bindings import Conversation
from relay_core.storage.atomic_file import atomic_write
from relay_core.storage.trusted_file import read_trusted

logger = logging.getLogger(__name__)


class ConversationsFile:
    """A file of conversations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()

    def load(self) -> set[Conversation]:
        """Return the conversations in the file. Blocks."""
        try:
            return {(str(chat), str(agent)) for chat, agent in orjson.loads(read_trusted(self._path))}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, TypeError) as error:
            logger.warning("%s cannot be read, so every conversation has yet to begin: %s", self._path, error)
            return set()

    async def save(self, begun: set[Conversation]) -> None:
        """Replace the file's content."""
        async with self._writing:
            try:
                await asyncio.to_thread(atomic_write, self._path, orjson.dumps(sorted(begun)))
            except StorageError as error:
                logger.error("the conversations of chats are not saved: %s", error.message)

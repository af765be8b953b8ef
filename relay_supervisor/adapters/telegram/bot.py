"""What must outlive a restart, and what an adapter and the one that replaces it have in common.

On disk, in one small file for each bot that is replaced as a whole (``bot-{id}.json``), so that a kill at any instant
leaves the old one or the new one:

1. ``offset``: the first update that Telegram shall send next. It reaches an update only once all before it are done.
2. ``done``: the latest updates that were dealt with, also those above the offset. Whatever Telegram sends again is
   found there. (The bus deduplicates too: an update that was published and not written down yet is not published
   twice.)
3. ``asked``: by message id of the bus, the chat and the Telegram message it came from, so that an answer finds them.
4. ``progress``: by chat, the progress message that is to go when the answer comes.

A file that cannot be read is set aside and begun anew: Telegram then sends what was not confirmed.

In memory: the limits, the work of agents for each chat, and the adapters that use the bot. Only the newest of them
receives updates and signals; an older one still finishes its deliveries. If the newest stops, the one before it takes
over again. A lock lets only one of them poll at a time. While a chat's lock is held, no other part of an answer or of a
work is sent to that chat.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from relay_core.clock import Clock
from relay_core.errors import StorageError
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.telegram.limits import RateLimits

logger = logging.getLogger(__name__)

_DONE_KEPT = 500
_ASKED_KEPT = 500
# After a week without updates Telegram goes on at a random number, which may be below the offset.
_OFFSET_LASTS_MS = 6 * 24 * 3600 * 1000


class Instance(Protocol):
    """One of those that have a bot: the adapter that runs, or the one that replaces it."""

    def resume(self) -> None:
        """Take in what people and agents say."""
        ...

    def pause(self) -> None:
        """Leave that to another one, at once."""
        ...


@dataclass(slots=True)
class Work:
    """What is done for one chat."""

    until: float
    asks: set[str] = field(default_factory=set)
    """Messages of the bus that are worked on."""
    text: str | None = None
    """The progress that is to be shown."""
    shown: str | None = None
    muted: bool = False
    """Whether there is no more progress to be shown: a second message might appear."""
    typed_at: float | None = None
    edited_at: float | None = None
    over: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_news(self) -> bool:
        """Tell whether there is progress that does not show yet."""
        return not self.muted and self.text is not None and self.text != self.shown


@dataclass(slots=True)
class Board:
    """The works of all chats."""

    works: dict[int, Work] = field(default_factory=dict)
    locks: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))


class Bot:
    """The memory of one bot."""

    def __init__(self, owner: str, path: Path, clock: Clock) -> None:
        self.owner = owner
        """The id of the adapter that has it."""
        self.limits = RateLimits(clock)
        self.board = Board()
        self.polling = asyncio.Lock()
        self.progress: dict[int, int] = {}
        self.under_way: set[tuple[int, int]] = set()
        """Chats and messages that are being published right now."""
        self._instances: list[Instance] = []
        self._clock = clock
        self._path = path
        self._offset: int | None = None
        self._moved_ms = 0
        self._done: OrderedDict[int, None] = OrderedDict()
        self._asked: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._writing = asyncio.Lock()
        self._changes = 0
        self._written = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, owner: str, path: Path, clock: Clock) -> AsyncIterator[Bot]:
        """Read a bot's memory, and have it for as long as an adapter uses it."""
        bot = cls(owner, path, clock)
        try:
            bot._restore(await asyncio.to_thread(_read, bot._path))
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.error("%s cannot be read: it is set aside and begun anew", bot._path)
            await asyncio.to_thread(bot._path.replace, bot._path.with_suffix(".bad"))
            bot = cls(owner, bot._path, clock)
        yield bot

    def enter(self, instance: Instance) -> None:
        """Let one in as the newest."""
        if self._instances:
            self._instances[-1].pause()
        self._instances.append(instance)
        instance.resume()

    def leave(self, instance: Instance) -> None:
        """Let one go; if it was the newest, the one before it takes over."""
        was_newest = self._instances[-1] is instance
        self._instances.remove(instance)
        instance.pause()
        if was_newest and self._instances:
            self._instances[-1].resume()

    @property
    def offset(self) -> int | None:
        """Return the first update to ask for; None lets Telegram begin with what it has."""
        stale = self._clock.now_ms() - self._moved_ms > _OFFSET_LASTS_MS
        return None if stale else self._offset

    def is_done(self, update: int) -> bool:
        """Tell whether an update was dealt with."""
        return update in self._done

    def finish(self, update: int, offset: int) -> None:
        """Note that an update was dealt with, and the first one that was not."""
        self._done[update] = None
        while len(self._done) > _DONE_KEPT:
            self._done.popitem(last=False)
        self._offset = offset
        self._moved_ms = self._clock.now_ms()
        self._changes += 1

    def remember(self, message_id: str, chat: int, message: int) -> None:
        """Note where a message of the bus came from."""
        self._asked[message_id] = (chat, message)
        while len(self._asked) > _ASKED_KEPT:
            self._asked.popitem(last=False)
        self._changes += 1

    def find_origin(self, message_id: str | None, chat: int) -> int | None:
        """Return the Telegram message of a chat that a message of the bus was."""
        known = self._asked.get(message_id) if message_id is not None else None
        return known[1] if known is not None and known[0] == chat else None

    def show(self, chat: int, message: int | None) -> int | None:
        """Note a chat's progress message, or that it has none any more; return the one it had."""
        before = self.progress.pop(chat, None)
        if message is not None:
            self.progress[chat] = message
        self._changes += 1
        return before

    async def save(self) -> None:
        """Write down what changed; those who save at the same time share one write.

        Raises:
            StorageError: if the disk refuses.
        """
        wanted = self._changes
        async with self._writing:
            if self._written >= wanted:
                return
            changes, data = self._changes, json.dumps(self._state()).encode()
            await asyncio.to_thread(atomic_write, self._path, data)
            self._written = changes

    async def try_save(self) -> None:
        """Write down what changed, if the disk lets us: what is lost is only a convenience."""
        try:
            await self.save()
        except StorageError as error:
            logger.warning("%s", error.message)

    def _state(self) -> dict[str, Any]:
        return {
            "offset": self._offset,
            "movedMs": self._moved_ms,
            "done": list(self._done),
            "asked": [[id, *where] for id, where in self._asked.items()],
            "progress": list(self.progress.items()),
        }

    def _restore(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        offset = state["offset"]
        self._offset = None if offset is None else int(offset)
        self._moved_ms = int(state["movedMs"])
        self._done = OrderedDict.fromkeys(int(one) for one in state["done"])
        self._asked = OrderedDict((str(id), (int(chat), int(message))) for id, chat, message in state["asked"])
        self.progress = {int(chat): int(message) for chat, message in state["progress"]}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(state, dict):
        raise ValueError("no object")
    return state

"""State that survives a restart, and state that an adapter and its replacement share.

On disk, in one small file per bot (``bot-{id}.json``) that is replaced atomically:

1. ``offset``: the next update to request. It reaches an update only when all before it are done.
2. ``done``: the latest handled updates, also those above the offset. Updates that Telegram sends again are found there.
   (The bus deduplicates too: an update that was published but not recorded yet is not published twice.)
3. ``asked``: by message id of the bus, the chat and the Telegram message that it came from, so that an answer becomes a
   reply.
4. ``progress``: by chat, the progress message to delete when the answer arrives.

An unreadable file is quarantined and a new one started: Telegram then sends everything that was not confirmed.

In memory: the rate limits, the agents' work for each chat, and the adapters that use the bot. Only the newest of them
receives updates and signals; an older one finishes its deliveries. If the newest stops, the one before it takes over
again. A lock lets only one of them poll at a time. A chat's lock serialises the parts of an answer and the display of
work in that chat.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from relay_core.clock import Clock
from relay_core.errors import StorageError
from relay_core.messages.base import WireModel
from relay_core.storage.atomic_file import atomic_write
from relay_supervisor.adapters.telegram.limits import RateLimits

logger = logging.getLogger(__name__)

_DONE_KEPT = 500
_ASKED_KEPT = 500
# After a week without updates Telegram continues at a random number, which may be below the offset.
_OFFSET_LASTS_MS = 6 * 24 * 3600 * 1000


class Listener(Protocol):
    """A part of an adapter that works only while its adapter is the bot's newest."""

    def resume(self) -> None:
        """Listen to people and agents."""
        ...

    def pause(self) -> None:
        """Stop listening at once."""
        ...


class _State(WireModel):
    """The file of a bot."""

    offset: int | None
    moved_ms: int
    done: tuple[int, ...]
    asked: tuple[tuple[str, int, int], ...]
    progress: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Work:
    """The agents' work for one chat."""

    until: float
    requests: set[str] = field(default_factory=set)
    """Messages of the bus that are being worked on."""
    text: str | None = None
    """The progress to show."""
    shown: str | None = None
    muted: bool = False
    """True if no more progress may be shown, since a second message might appear."""
    typed_at: float | None = None
    edited_at: float | None = None
    over: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_news(self) -> bool:
        """Return True if there is progress that is not shown yet."""
        return not self.muted and self.text is not None and self.text != self.shown


class Bot:
    """The state of one bot."""

    def __init__(self, owner: str, path: Path, clock: Clock) -> None:
        self.owner = owner
        """The id of the adapter that uses it."""
        self.limits = RateLimits(clock)
        self.works: dict[int, Work] = {}
        self.locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.polling = asyncio.Lock()
        self.progress: dict[int, int] = {}
        self.publishing: set[tuple[int, int]] = set()
        """Chats and messages that are being published right now."""
        self._adapters: list[Sequence[Listener]] = []
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
        """Load a bot's state, for as long as an adapter uses it."""
        bot = cls(owner, path, clock)
        try:
            bot._restore(_State.model_validate_json(await asyncio.to_thread(path.read_bytes)))
        except FileNotFoundError:
            pass
        except ValueError:
            logger.error("%s cannot be read: it is quarantined and started again", path)
            await asyncio.to_thread(path.replace, path.with_suffix(".bad"))
        yield bot

    def enter(self, listeners: Sequence[Listener]) -> None:
        """Make an adapter the newest."""
        if self._adapters:
            _pause(self._adapters[-1])
        self._adapters.append(listeners)
        _resume(listeners)

    def leave(self, listeners: Sequence[Listener]) -> None:
        """Remove an adapter; if it was the newest, the one before it takes over."""
        was_newest = self._adapters[-1] is listeners
        self._adapters.remove(listeners)
        _pause(listeners)
        if was_newest and self._adapters:
            _resume(self._adapters[-1])

    @property
    def offset(self) -> int | None:
        """Return the next update to request; None lets Telegram start with its oldest."""
        stale = self._clock.now_ms() - self._moved_ms > _OFFSET_LASTS_MS
        return None if stale else self._offset

    def is_done(self, update: int) -> bool:
        """Return True if an update was handled."""
        return update in self._done

    def finish(self, update: int, offset: int) -> None:
        """Record a handled update, and the first one that is not handled."""
        self._done[update] = None
        while len(self._done) > _DONE_KEPT:
            self._done.popitem(last=False)
        self._offset = offset
        self._moved_ms = self._clock.now_ms()
        self._changes += 1

    def remember(self, message_id: str, chat: int, message: int) -> None:
        """Record the origin of a message of the bus."""
        self._asked[message_id] = (chat, message)
        while len(self._asked) > _ASKED_KEPT:
            self._asked.popitem(last=False)
        self._changes += 1

    def find_origin(self, message_id: str | None, chat: int) -> int | None:
        """Return the Telegram message in a chat that a message of the bus came from."""
        known = self._asked.get(message_id) if message_id is not None else None
        return known[1] if known is not None and known[0] == chat else None

    def show(self, chat: int, message: int | None) -> int | None:
        """Set or clear a chat's progress message; return the previous one."""
        before = self.progress.pop(chat, None)
        if message is not None:
            self.progress[chat] = message
        self._changes += 1
        return before

    async def save(self) -> None:
        """Write the state; concurrent calls share one write. Raises StorageError."""
        wanted = self._changes
        async with self._writing:
            if self._written >= wanted:
                return
            changes, data = self._changes, self._state().model_dump_json(by_alias=True).encode()
            await asyncio.to_thread(atomic_write, self._path, data)
            self._written = changes

    async def try_save(self) -> None:
        """Write the state if possible: only a convenience is lost."""
        try:
            await self.save()
        except StorageError as error:
            logger.warning("%s", error.message)

    def _state(self) -> _State:
        return _State(
            offset=self._offset,
            moved_ms=self._moved_ms,
            done=tuple(self._done),
            asked=tuple((id, chat, message) for id, (chat, message) in self._asked.items()),
            progress=tuple(self.progress.items()),
        )

    def _restore(self, state: _State) -> None:
        self._offset, self._moved_ms = state.offset, state.moved_ms
        self._done = OrderedDict.fromkeys(state.done)
        self._asked = OrderedDict((id, (chat, message)) for id, chat, message in state.asked)
        self.progress = dict(state.progress)


def _resume(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.resume()


def _pause(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        listener.pause()

"""Short messages of our own to people, in the background.

1. A person is told of each message that was not passed on, as a reply to it. A notice that would only repeat itself (no
   agent answers this chat) is sent once a minute.
2. Notices respect the limits, one after the other in a chat, so an answer waits for one of them at most.
3. Ten may wait in a chat; further ones are counted, and one notice covers all of them.
4. A notice that gets no place within a minute, or that Telegram refuses, is dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from relay_core.clock import Clock
from relay_core.tasks import Tasks
from relay_supervisor.adapters.telegram.api import Api, NotSent, RateLimited, TelegramError
from relay_supervisor.adapters.telegram.bot import Bot

MORE = "{count} more messages, up to this one, were not passed on either. Please send them again later."
MOST_WAITING = 10
_MOST_CHATS = 200
_PATIENCE_SECS = 60.0
_AGAIN_SECS = 60.0
_KEYS_KEPT = 1000
_TRIES = 3


class OncePerMinute:
    """Limits events to one per minute and key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._when: OrderedDict[Hashable, float] = OrderedDict()

    def note(self, key: Hashable) -> bool:
        """Record an event; return False if there was one within the last minute."""
        now, before = self._clock.monotonic(), self._when.get(key)
        if before is not None and now - before < _AGAIN_SECS:
            return False
        self._when[key] = now
        self._when.move_to_end(key)
        while len(self._when) > _KEYS_KEPT:
            self._when.popitem(last=False)
        return True


@dataclass(slots=True)
class _Queue:
    """The notices that wait in one chat."""

    waiting: deque[tuple[int, str]] = field(default_factory=deque)
    more: int = 0
    """Messages without their own notice."""
    last: int = 0

    def put(self, number: int, text: str) -> None:
        if len(self.waiting) < MOST_WAITING and not self.more:
            self.waiting.append((number, text))
        else:
            self.more += 1
            self.last = number

    def take(self) -> tuple[int, str] | None:
        if self.waiting:
            return self.waiting.popleft()
        if self.more:
            count, self.more = self.more, 0
            return self.last, MORE.format(count=count)
        return None


class Notices:
    """Send notices to people."""

    def __init__(self, api: Api, bot: Bot, clock: Clock, tasks: Tasks) -> None:
        self._api = api
        self._bot = bot
        self._tasks = tasks
        self._queues: dict[int, _Queue] = {}
        self._sent = OncePerMinute(clock)

    def send(self, chat: int, number: int, text: str) -> None:
        """Reply to a message with a notice."""
        queue = self._queues.get(chat)
        if queue is not None:
            queue.put(number, text)
        elif len(self._queues) < _MOST_CHATS:
            queue = self._queues[chat] = _Queue()
            queue.put(number, text)
            self._tasks.start(self._send_all(chat, queue), name=f"telegram notices to {chat}")

    def send_once(self, chat: int, number: int, text: str) -> None:
        """Reply to a message with a notice, unless the chat got the same one within the last minute."""
        if self._sent.note((chat, text)):
            self.send(chat, number, text)

    async def _send_all(self, chat: int, queue: _Queue) -> None:
        try:
            while notice := queue.take():
                await self._send(chat, *notice)
        finally:
            del self._queues[chat]

    async def _send(self, chat: int, number: int, text: str) -> None:
        reply = {"message_id": number, "allow_sending_without_reply": True}
        for _ in range(_TRIES):
            if not await self._bot.limits.acquire(chat, _PATIENCE_SECS):
                return
            try:
                await self._api.call("sendMessage", chat_id=chat, text=text, reply_parameters=reply)
                return
            except RateLimited as error:
                self._bot.limits.hold(chat, error.retry_after)
            except NotSent:
                continue
            except TelegramError:
                return

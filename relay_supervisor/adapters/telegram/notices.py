"""Short sentences of our own to people, in the background.

1. Whoever's message was not passed on is told so, as a reply to that message: each of them, so that no message is lost
   without a word. What only repeats itself (nobody answers this chat) is said once a minute.
2. Notices keep the limits, one after the other in a chat, so that an answer waits for one of them at most.
3. Ten may wait in a chat; the others are counted, and one remark speaks for all of them.
4. A remark for which there is no room within a minute, or that Telegram does not take, is dropped.
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
    """What happened within the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._when: OrderedDict[Hashable, float] = OrderedDict()

    def note(self, key: Hashable) -> bool:
        """Note that something happens; False if it has within the last minute."""
        now, before = self._clock.monotonic(), self._when.get(key)
        if before is not None and now - before < _AGAIN_SECS:
            return False
        self._when[key] = now
        self._when.move_to_end(key)
        while len(self._when) > _KEYS_KEPT:
            self._when.popitem(last=False)
        return True


@dataclass(slots=True)
class _Line:
    """The notices that wait in one chat."""

    waiting: deque[tuple[int, str]] = field(default_factory=deque)
    more: int = 0
    """Messages that no remark of their own waits for."""
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
    """Say something to people."""

    def __init__(self, api: Api, bot: Bot, clock: Clock, tasks: Tasks) -> None:
        self._api = api
        self._bot = bot
        self._tasks = tasks
        self._lines: dict[int, _Line] = {}
        self._said = OncePerMinute(clock)

    def say(self, chat: int, number: int, text: str) -> None:
        """Answer a message with a sentence."""
        line = self._lines.get(chat)
        if line is not None:
            line.put(number, text)
        elif len(self._lines) < _MOST_CHATS:
            line = self._lines[chat] = _Line()
            line.put(number, text)
            self._tasks.start(self._speak(chat, line), name=f"telegram notices to {chat}")

    def say_once(self, chat: int, number: int, text: str) -> None:
        """Answer a message with a sentence, unless the chat was told the same within the last minute."""
        if self._said.note((chat, text)):
            self.say(chat, number, text)

    async def _speak(self, chat: int, line: _Line) -> None:
        try:
            while remark := line.take():
                await self._say(chat, *remark)
        finally:
            del self._lines[chat]

    async def _say(self, chat: int, number: int, text: str) -> None:
        reply = {"message_id": number, "allow_sending_without_reply": True}
        for _ in range(_TRIES):
            if not await self._bot.limits.acquire(chat, _PATIENCE_SECS):
                return
            try:
                await self._api.call("sendMessage", chat_id=chat, text=text, reply_parameters=reply)
            except RateLimited as error:
                self._bot.limits.hold(chat, error.retry_after)
            except NotSent:
                continue
            except TelegramError:
                return
            else:
                return

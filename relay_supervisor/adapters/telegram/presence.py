"""Typing and progress in a chat while an agent works for it.

1. Only work that the chat asked for shows: a signal must name a message that came from that chat. So nobody who is
   not bound to a chat can show anything there.
2. From ``typing`` ``started`` until ``stopped``, the answer, or ten minutes, the chat sees that somebody types. In a
   group less often, since 20 calls a minute are all a group has.
3. Progress is one message that is edited; of texts that come faster than the limits allow, the latest is shown. It goes
   when the answer has come, or after ten minutes. If Telegram's answer to its first sending is lost, there is no more
   progress for this work: a second message must not appear.
4. None of this may fail or delay a delivery: errors are swallowed, and while an answer goes out, nothing else does.
5. Of an adapter and the one that replaces it, only the newest listens and shows; it goes on with what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relay_core.clock import Clock, call_later, sleep
from relay_core.messages.signals import Signal, SignalType
from relay_core.tasks import Tasks
from relay_supervisor.adapters.telegram.api import Api, NotSent, RateLimited, TelegramError
from relay_supervisor.adapters.telegram.bot import Bot, Work
from relay_supervisor.adapters.telegram.chats import chat_of, clean
from relay_supervisor.adapters.telegram.inbound import message_of

LONGEST_SECS = 600.0
TYPING_SECS = 4.0
GROUP_TYPING_SECS = 15.0
PROGRESS_SECS = 1.0
GROUP_PROGRESS_SECS = 6.0
_LONGEST_TEXT = 1000
_TRIES = 3


class Presence:
    """Show what agents do."""

    def __init__(self, adapter_id: str, api: Api, bot: Bot, clock: Clock, tasks: Tasks, removals: Tasks) -> None:
        self._id = adapter_id
        self._api = api
        self._bot = bot
        self._clock = clock
        self._tasks = tasks
        self._removals = removals
        """Tasks that may end by themselves before the adapter stops: nobody else would take progress away."""
        self._loop = asyncio.get_running_loop()
        self._board = bot.board
        self._listens = False

    def resume(self) -> None:
        """Listen from now on, and go on with the works there are."""
        self._listens = True
        for chat, work in self._board.works.items():
            self._begin(chat, work)

    def pause(self) -> None:
        """Listen and show no more."""
        self._listens = False
        for work in self._board.works.values():
            work.wake.set()

    def hear(self, subject: str, signal: Signal) -> None:
        """Take a signal in, from whatever thread it comes."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._hear(subject, signal)
        else:
            self._loop.call_soon_threadsafe(self._hear, subject, signal)

    def _begin(self, chat: int, work: Work) -> None:
        self._tasks.start(self._show(chat, work), name=f"telegram presence in {chat}")

    def _hear(self, subject: str, signal: Signal) -> None:
        if not self._listens:
            return
        chat = chat_of(self._id, subject)
        data = signal.data if isinstance(signal.data, dict) else {}
        ask = data.get("messageId")
        if chat is None or not isinstance(ask, str) or signal.type not in (SignalType.TYPING, SignalType.PROGRESS):
            return
        if self._bot.find_origin(ask, chat) is None:
            # An agent may be at work before the publish it works for has returned.
            number = message_of(data.get("correlationId"), chat)
            if number is None or (chat, number) not in self._bot.under_way:
                return
            self._bot.remember(ask, chat, number)
        work = self._board.works.get(chat)
        if signal.type == SignalType.TYPING and signal.state == "stopped":
            if work is not None:
                work.asks.discard(ask)
                work.wake.set()
            return
        if work is None or work.over:
            work = self._board.works[chat] = Work(until=self._clock.monotonic() + LONGEST_SECS)
            self._begin(chat, work)
        if signal.type == SignalType.TYPING:
            work.asks.add(ask)
        else:
            work.text = " ".join(clean(data.get("text")).split())[:_LONGEST_TEXT] or work.text
        work.wake.set()

    @asynccontextmanager
    async def quiet(self, chat: int) -> AsyncIterator[None]:
        """Show nothing in a chat for a while: what is under way ends first."""
        async with self._board.locks[chat]:
            yield

    def answered(self, chat: int, ask: str | None) -> None:
        """End the work that a message was, or all of the chat's, and take its progress away."""
        work = self._board.works.get(chat)
        if work is not None:
            work.asks = work.asks - {ask} if ask in work.asks else set()
            work.text = work.shown = None
            work.over = not work.asks
            work.wake.set()
        if chat in self._bot.progress:
            self._removals.start(self._remove(chat), name=f"telegram progress of {chat} goes")

    async def _show(self, chat: int, work: Work) -> None:
        try:
            while self._listens and not work.over and self._clock.monotonic() < work.until:
                work.wake.clear()
                if not work.asks and not work.has_news and chat not in self._bot.progress:
                    return
                delay = self._due(chat, work)
                if delay > 0:
                    await self._wait(work, min(delay, work.until - self._clock.monotonic()))
                    continue
                async with self.quiet(chat):
                    if self._listens and not work.over:
                        await self._step(chat, work)
        finally:
            if self._listens and self._board.works.get(chat) is work:
                del self._board.works[chat]
        if self._listens and not work.over:
            await self._remove(chat)

    def _due(self, chat: int, work: Work) -> float:
        """Return the seconds until the next thing is to be shown."""
        now, group = self._clock.monotonic(), chat < 0
        waits = [LONGEST_SECS]
        if work.has_news:
            every = GROUP_PROGRESS_SECS if group else PROGRESS_SECS
            waits.append(work.edited_at + every - now if work.edited_at is not None else 0.0)
        if work.asks:
            every = GROUP_TYPING_SECS if group else TYPING_SECS
            waits.append(work.typed_at + every - now if work.typed_at is not None else 0.0)
        return max(min(waits), self._bot.limits.wait(chat))

    async def _step(self, chat: int, work: Work) -> None:
        limits = self._bot.limits
        if not limits.try_acquire(chat):
            return  # an answer went out first
        now = self._clock.monotonic()
        news = work.has_news and (work.asks == set() or work.typed_at is not None)
        try:
            if not news:
                work.typed_at = now
                await self._api.call("sendChatAction", chat_id=chat, action="typing")
                return
            work.edited_at = now
            text, work.shown = work.text, work.text
            message = self._bot.progress.get(chat)
            if message is not None:
                await self._api.call("editMessageText", chat_id=chat, message_id=message, text=f"⏳ {text}")
                return
            work.muted = True  # until it is known what became of it, also if this adapter is stopped meanwhile
            sent = await self._api.call("sendMessage", chat_id=chat, text=f"⏳ {text}", disable_notification=True)
            number = sent.get("message_id") if isinstance(sent, dict) else None
            if type(number) is int:
                work.muted = False
                self._bot.show(chat, number)
                await self._bot.try_save()
        except RateLimited as error:
            limits.hold(chat, error.retry_after)
            if news:
                work.shown, work.muted = None, False  # not shown after all
        except TelegramError:
            work.muted = work.muted or news

    async def _wait(self, work: Work, delay: float) -> None:
        timer = call_later(self._clock, delay, work.wake.set)
        try:
            await work.wake.wait()
        finally:
            timer.cancel()

    async def _remove(self, chat: int) -> None:
        message = self._bot.show(chat, None)
        if message is None:
            return
        try:
            await self._delete(chat, message)
        except asyncio.CancelledError:
            if chat not in self._bot.progress:
                self._bot.show(chat, message)  # the next answer takes it away
            raise
        await self._bot.try_save()

    async def _delete(self, chat: int, message: int) -> None:
        for _ in range(_TRIES):
            try:
                await self._api.call("deleteMessage", chat_id=chat, message_id=message)
            except RateLimited as error:
                await sleep(self._clock, error.retry_after)
            except NotSent:
                await sleep(self._clock, PROGRESS_SECS)
            except TelegramError:
                return
            else:
                return

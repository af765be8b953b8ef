"""Typing and progress in a chat while an agent works for it.

1. Only work that the chat requested is shown: a signal must name a message that came from that chat. So an agent that
   is not bound to a chat can show nothing there.
2. From ``typing`` ``started`` until ``stopped``, the answer, or ten minutes, the chat shows that the bot types. In a
   group less often, since a group has only 20 calls a minute.
3. Progress is one message that is edited; if texts come faster than the limits allow, the latest is shown. It is
   deleted after the answer, or after ten minutes. If Telegram's response to its first sending is lost, there is no more
   progress for this work: a second message must not appear.
4. Presence never fails or delays a delivery: errors are ignored, and while an answer is sent, nothing else is.
5. Of an adapter and its replacement, only the newer one listens and shows; it continues the current work.
"""

from __future__ import annotations

import asyncio

from relay_core.clock import Clock, sleep
from relay_core.messages.signals import Signal, SignalType
from relay_core.tasks import Tasks
from relay_supervisor.adapters.platform import wait_event
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
    """Show the agents' work."""

    def __init__(self, adapter_id: str, api: Api, bot: Bot, clock: Clock, tasks: Tasks, removals: Tasks) -> None:
        self._id = adapter_id
        self._api = api
        self._bot = bot
        self._clock = clock
        self._tasks = tasks
        self._removals = removals
        """Tasks that get time to complete when the adapter stops: progress would stay otherwise."""
        self._loop = asyncio.get_running_loop()
        self._listening = False

    def resume(self) -> None:
        """Listen, and continue the current work."""
        self._listening = True
        for chat, work in self._bot.works.items():
            self._start(chat, work)

    def pause(self) -> None:
        """Stop listening and showing."""
        self._listening = False
        for work in self._bot.works.values():
            work.wake.set()

    def on_signal(self, subject: str, signal: Signal) -> None:
        """Handle a signal, from any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._handle(subject, signal)
        else:
            self._loop.call_soon_threadsafe(self._handle, subject, signal)

    def _start(self, chat: int, work: Work) -> None:
        self._tasks.start(self._show(chat, work), name=f"telegram presence in {chat}")

    def _handle(self, subject: str, signal: Signal) -> None:
        if not self._listening:
            return
        chat = chat_of(self._id, subject)
        data = signal.data if isinstance(signal.data, dict) else {}
        request = data.get("messageId")
        if chat is None or not isinstance(request, str) or signal.type not in (SignalType.TYPING, SignalType.PROGRESS):
            return
        if self._bot.find_origin(request, chat) is None:
            # An agent may start before the publish of its request has returned.
            number = message_of(data.get("correlationId"), chat)
            if number is None or (chat, number) not in self._bot.publishing:
                return
            self._bot.remember(request, chat, number)
        work = self._bot.works.get(chat)
        if signal.type == SignalType.TYPING and signal.state == "stopped":
            if work is not None:
                work.requests.discard(request)
                work.wake.set()
            return
        if work is None or work.over:
            work = self._bot.works[chat] = Work(until=self._clock.monotonic() + LONGEST_SECS)
            self._start(chat, work)
        if signal.type == SignalType.TYPING:
            work.requests.add(request)
        else:
            work.text = " ".join(clean(data.get("text")).split())[:_LONGEST_TEXT] or work.text
        work.wake.set()

    def quiet(self, chat: int) -> asyncio.Lock:
        """Return a lock under which nothing is shown in a chat."""
        return self._bot.locks[chat]

    def answered(self, chat: int, request: str | None) -> None:
        """End the work on a request, or all of the chat's work, and delete its progress."""
        work = self._bot.works.get(chat)
        if work is not None:
            work.requests = work.requests - {request} if request in work.requests else set()
            work.text = work.shown = None
            work.over = not work.requests
            work.wake.set()
        if chat in self._bot.progress:
            self._removals.start(self._remove(chat), name=f"telegram progress of {chat} is deleted")

    async def _show(self, chat: int, work: Work) -> None:
        try:
            while self._listening and not work.over and self._clock.monotonic() < work.until:
                work.wake.clear()
                if not work.requests and not work.has_news and chat not in self._bot.progress:
                    return
                delay = self._due(chat, work)
                if delay > 0:
                    await wait_event(self._clock, work.wake, min(delay, work.until - self._clock.monotonic()))
                    continue
                async with self.quiet(chat):
                    if self._listening and not work.over:
                        await self._step(chat, work)
        finally:
            if self._listening and self._bot.works.get(chat) is work:
                del self._bot.works[chat]
        if self._listening and not work.over:
            await self._remove(chat)

    def _due(self, chat: int, work: Work) -> float:
        """Return the seconds until typing or progress is due."""
        now, group = self._clock.monotonic(), chat < 0
        waits = [LONGEST_SECS]
        if work.has_news:
            every = GROUP_PROGRESS_SECS if group else PROGRESS_SECS
            waits.append(work.edited_at + every - now if work.edited_at is not None else 0.0)
        if work.requests:
            every = GROUP_TYPING_SECS if group else TYPING_SECS
            waits.append(work.typed_at + every - now if work.typed_at is not None else 0.0)
        return max(min(waits), self._bot.limits.wait(chat))

    async def _step(self, chat: int, work: Work) -> None:
        limits = self._bot.limits
        if not limits.try_acquire(chat):
            return  # an answer was sent first
        now = self._clock.monotonic()
        news = work.has_news and (not work.requests or work.typed_at is not None)
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
            work.muted = True  # until the outcome is known, even if this adapter is stopped meanwhile
            sent = await self._api.call("sendMessage", chat_id=chat, text=f"⏳ {text}", disable_notification=True)
            number = sent.get("message_id") if isinstance(sent, dict) else None
            if type(number) is int:
                work.muted = False
                self._bot.show(chat, number)
                await self._bot.try_save()
        except RateLimited as error:
            limits.hold(chat, error.retry_after)
            if news:
                work.shown, work.muted = None, False  # it was not shown
        except TelegramError:
            work.muted = work.muted or news

    async def _remove(self, chat: int) -> None:
        message = self._bot.show(chat, None)
        if message is None:
            return
        try:
            await self._delete(chat, message)
        except asyncio.CancelledError:
            if chat not in self._bot.progress:
                self._bot.show(chat, message)  # the next answer deletes it
            raise
        await self._bot.try_save()

    async def _delete(self, chat: int, message: int) -> None:
        for _ in range(_TRIES):
            try:
                await self._api.call("deleteMessage", chat_id=chat, message_id=message)
                return
            except RateLimited as error:
                await sleep(self._clock, error.retry_after)
            except NotSent:
                await sleep(self._clock, PROGRESS_SECS)
            except TelegramError:
                return

"""The Telegram adapter: starts and stops its parts.

1. A start asks Telegram who the bot is. A wrong token fails the start, so a reload keeps the running adapter. A missing
   network does not: the adapter is ``disconnected`` and keeps trying.
2. An adapter and its replacement share one `Bot`, and the newer one takes over at once: the old one only finishes its
   current deliveries, for as long as one may take. Two adapters with different ids must not share a bot: each would
   take the other's updates.
3. A stop lets the current update finish, and gives pending notices and removals of progress a moment. Then everything
   closes in reverse order.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import ClassVar

from relay_core.adapters.interface import AdapterContext, DeliveryContext, DeliveryResult
from relay_core.errors import RelayError
from relay_core.messages.envelope import Envelope
from relay_core.tasks import Tasks
from relay_supervisor.adapters.platform import PlatformAdapter
from relay_supervisor.adapters.telegram.api import Api, BadToken, TelegramError, explain
from relay_supervisor.adapters.telegram.attachments import Attachments
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.chats import chat_of, prefix
from relay_supervisor.adapters.telegram.config import TelegramConfig
from relay_supervisor.adapters.telegram.inbound import Inbound
from relay_supervisor.adapters.telegram.notices import Notices
from relay_supervisor.adapters.telegram.outbound import TIMEOUT_SECS, Outbound
from relay_supervisor.adapters.telegram.polling import Poller
from relay_supervisor.adapters.telegram.presence import Presence

_STOP_SECS = 4.0
_CLOSING_SECS = 2.0


class TelegramAdapter(PlatformAdapter):
    """A bridge between a bot's chats and the bus."""

    config_model: ClassVar = TelegramConfig
    bound = True
    timeout = TIMEOUT_SECS
    max_in_flight = 16
    drain = TIMEOUT_SECS

    def __init__(self, id: str, config: TelegramConfig) -> None:
        super().__init__(id)
        self.patterns = (f"{prefix(id)}.>",)
        self.senders = self.patterns
        self._config = config
        self._outbound: Outbound | None = None

    def lane(self, subject: str) -> str | None:
        """Return the chat, so that no chat waits for another."""
        chat = chat_of(self.id, subject)
        return None if chat is None else str(chat)

    async def stop(self) -> None:
        """Close everything; stopping again does nothing."""
        self._outbound = None
        await super().stop()

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Send a message to its chat."""
        if self._outbound is None:
            return DeliveryResult(ok=False, error="the adapter is not running", retry_after=1.0)
        return await self._outbound.deliver(envelope, context)

    async def _open(self, context: AdapterContext, stack: AsyncExitStack) -> None:
        config, clock = self._config, context.clock
        api = await stack.enter_async_context(Api(config.token, config.api_base, timeout=config.request_timeout_secs))
        bot = await stack.enter_async_context(
            context.share(
                ("telegram", config.bot_id),
                lambda: Bot.open(self.id, context.data_dir / f"bot-{config.bot_id}.json", clock),
            )
        )
        if bot.owner != self.id:
            raise RelayError(f"adapter {bot.owner} uses this bot already: create another bot for this adapter")
        tasks, closing_tasks = Tasks(), Tasks()
        stack.push_async_callback(tasks.close)
        stack.push_async_callback(closing_tasks.close, grace=_CLOSING_SECS)
        attachments = Attachments(config, api, context.data_dir, clock)
        await asyncio.to_thread(attachments.open)
        presence = Presence(self.id, api, bot, clock, tasks, closing_tasks)
        notices = Notices(api, bot, clock, closing_tasks)
        inbound = Inbound(self.id, config, context, api, bot, attachments, notices)
        poller = Poller(config, api, bot, inbound, context, self._set_status)
        try:
            await inbound.identify()
        except BadToken as error:
            raise RelayError(explain(error)[1], code="bad_token") from None
        except TelegramError as error:
            self._set_status(*explain(error))
        else:
            if bot.polling.locked():
                self._set_status("connected")  # it can send while the old adapter handles its last update
        for pattern in self.patterns:
            stack.callback(context.on_signal(pattern, presence.on_signal).close)
        self._outbound = Outbound(self.id, config, api, bot, clock, attachments, presence, self._set_status)
        task = tasks.start(poller.run(), name=f"telegram {self.id} polls")
        assert task is not None
        stack.push_async_callback(_end, poller, task)
        listeners = (poller, presence)
        bot.enter(listeners)
        stack.callback(bot.leave, listeners)


async def _end(poller: Poller, task: asyncio.Task[None]) -> None:
    """Stop polling; the current update may finish."""
    poller.stop()
    await asyncio.wait({task}, timeout=_STOP_SECS)

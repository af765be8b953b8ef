"""The Telegram adapter: its parts put together, started and stopped.

1. A start asks Telegram who the bot is. A wrong token fails the start, so a reload keeps the adapter that runs. No
   network does not: the adapter is ``disconnected`` and goes on trying.
2. An adapter and the one that replaces it have one `Bot` in common, whose newest takes over at once: the old one only
   finishes the deliveries it has in hand, for as long as one may take. Two adapters with different ids must not have
   one: each would take away the other's updates.
3. A stop lets the update under way end, and gives what is still to be said or taken away in a chat a moment. Then
   everything is closed, in the order opposite to that of the start.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import ClassVar

from relay_core.adapters.interface import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.errors import RelayError
from relay_core.messages.envelope import Envelope
from relay_core.messages.operator_views import StateName
from relay_core.tasks import Tasks
from relay_supervisor.adapters.telegram.api import Api, BadToken, OutcomeUnknown, TelegramError, explain
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


class TelegramAdapter:
    """A bridge between chats of one bot and the bus."""

    config_model: ClassVar = TelegramConfig
    bound = True
    timeout = TIMEOUT_SECS
    max_in_flight = 16
    drain = TIMEOUT_SECS

    def __init__(self, id: str, config: TelegramConfig) -> None:
        self.id = id
        self.patterns = (f"{prefix(id)}.>",)
        self.senders = self.patterns
        self.status = AdapterStatus("disconnected")
        self._config = config
        self._context: AdapterContext | None = None
        self._stack = AsyncExitStack()
        self._outbound: Outbound | None = None

    def lane(self, subject: str) -> str | None:
        """Return the chat, so that no chat waits for another."""
        chat = chat_of(self.id, subject)
        return None if chat is None else str(chat)

    async def start(self, context: AdapterContext) -> None:
        """Connect to Telegram.

        Raises:
            RelayError: if the token is wrong, or another adapter has the bot already.
        """
        self._context = context
        self.status = AdapterStatus("starting")
        async with AsyncExitStack() as stack:
            await self._open(context, stack)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Let go of everything."""
        self._outbound = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()
        self._context = None
        self.status = AdapterStatus("disconnected")

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
            raise RelayError(f"adapter {bot.owner} has this bot already: give each adapter a bot of its own")
        tasks, closing_tasks = Tasks(), Tasks()
        stack.push_async_callback(tasks.close)
        stack.push_async_callback(closing_tasks.close, grace=_CLOSING_SECS)
        attachments = Attachments(config, api, context.data_dir, clock)
        await asyncio.to_thread(attachments.open)
        presence = Presence(self.id, api, bot, clock, tasks, closing_tasks)
        notices = Notices(api, bot, clock, closing_tasks)
        inbound = Inbound(self.id, config, context, api, bot, attachments, notices)
        greeting = _Greeting(config, api, inbound)
        poller = Poller(
            config,
            api,
            bot,
            clock,
            greet=greeting.ensure,
            take=inbound.take,
            give_up=inbound.give_up,
            report=self._report,
            logger=context.logger,
        )
        try:
            await greeting.ensure()
        except BadToken as error:
            raise RelayError(explain(error)[1], code="bad_token") from None
        except TelegramError as error:
            self._report(*explain(error))
        else:
            if bot.polling.locked():
                self._report("connected", None)  # it can send while the one it replaces has an update in hand
        for pattern in self.patterns:
            stack.callback(context.on_signal(pattern, presence.hear).close)
        self._outbound = Outbound(self.id, config, api, bot, clock, attachments, presence, self._report)
        task = tasks.start(poller.run(), name=f"telegram {self.id} polls")
        assert task is not None
        stack.push_async_callback(_end, poller, task)
        instance = _Instance(poller, presence)
        bot.enter(instance)
        stack.callback(bot.leave, instance)

    def _report(self, state: StateName, detail: str | None) -> None:
        if self._context is not None and (state, detail) != (self.status.state, self.status.detail):
            self.status = AdapterStatus(state, detail)
            self._context.status_changed()


class _Greeting:
    """Learn who the bot is, once."""

    def __init__(self, config: TelegramConfig, api: Api, inbound: Inbound) -> None:
        self._config = config
        self._api = api
        self._inbound = inbound
        self._done = False

    async def ensure(self) -> None:
        """Ask, unless it is known already.

        Raises:
            TelegramError: if that fails.
        """
        if self._done:
            return
        me = await self._api.call("getMe")
        if not isinstance(me, dict):
            raise OutcomeUnknown("Telegram's answer to getMe is no bot")
        username = me.get("username")
        self._inbound.username = username if isinstance(username, str) else None
        if self._config.delete_webhook:
            await self._api.call("deleteWebhook")
        self._done = True


class _Instance:
    """What only the newest of a bot's adapters does."""

    def __init__(self, poller: Poller, presence: Presence) -> None:
        self._poller = poller
        self._presence = presence

    def resume(self) -> None:
        self._poller.resume()
        self._presence.resume()

    def pause(self) -> None:
        self._poller.pause()
        self._presence.pause()


async def _end(poller: Poller, task: asyncio.Task[None]) -> None:
    """Stop polling; an update that is being published may finish."""
    poller.stop()
    await asyncio.wait({task}, timeout=_STOP_SECS)

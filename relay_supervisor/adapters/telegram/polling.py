"""The loop that polls Telegram for updates, and its failures.

1. An update is done when its publish has returned. The offset on disk, which confirms all updates below it to Telegram,
   never passes one that is not done.
2. The chats of one response are handled concurrently, each in order; the next poll waits for all of them.
3. Only one adapter of this process polls at a time. On a hot reload the old adapter stops at once, after its current
   update, so that the new config applies to the next one.
4. A stop waits a moment for the current update. One that takes longer is not done, and the bus knows whether it was
   stored.
5. An update that fails unexpectedly is tried three times, with pauses. Then the person is told.

Failures, as the adapter's status:

- 401, 404 → ``error``: the token is revoked or wrong. Retried, since BotFather can correct it.
- 409 → ``error``: another program polls, or a webhook is set.
- no network, a timeout, a 5xx, a response that is not the Bot API's or has no usable update → ``disconnected``.
- 429 → waits as long as it says; the status stays, and mentions it if that is more than a minute.

After each, the pause doubles from 1 to 60 seconds, with jitter. A good response makes it ``connected`` again.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from relay_core.adapters.interface import AdapterContext
from relay_core.clock import sleep
from relay_core.errors import Closed, StorageError
from relay_core.messages.operator_views import StateName
from relay_supervisor.adapters.telegram.api import Api, Conflict, OutcomeUnknown, RateLimited, TelegramError, explain
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.config import TelegramConfig
from relay_supervisor.adapters.telegram.inbound import UPDATE_KINDS, Inbound

Report = Callable[[StateName, str | None], None]
T = TypeVar("T")

FIRST_PAUSE_SECS = 1.0
LAST_PAUSE_SECS = 60.0
_RESPONSE_SECS = 10.0
"""How much longer than the poll itself a response may take."""
_CONCURRENT_CHATS = 8
_TRIES = 3
_BATCH = 100


class Poller:
    """Receive updates until it is stopped."""

    def __init__(
        self, config: TelegramConfig, api: Api, bot: Bot, inbound: Inbound, context: AdapterContext, report: Report
    ) -> None:
        self._config = config
        self._api = api
        self._bot = bot
        self._inbound = inbound
        self._clock = context.clock
        self._logger = context.logger
        self._report = report
        self._failures = 0
        self._quick = True
        """True if the next poll returns at once, to learn whether polling works."""
        self._healthy = False
        """True if the latest poll succeeded."""
        self._stopping = False
        self._may_poll = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()
        """The waits that a pause cuts short."""
        self._slots = asyncio.Semaphore(_CONCURRENT_CHATS)

    async def run(self) -> None:
        """Poll until stopped, except while paused."""
        while not self._stopping:
            await self._may_poll.wait()
            if await self._unless_paused(self._bot.polling.acquire()):  # the old adapter may have an update
                try:
                    await self._poll()
                finally:
                    self._bot.polling.release()

    def resume(self) -> None:
        """Poll."""
        self._may_poll.set()

    def pause(self) -> None:
        """Stop polling; the current updates complete."""
        self._may_poll.clear()
        for limit in self._limits:
            if limit.when() is None:  # not cut short yet
                limit.reschedule(asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Stop polling, and end."""
        self.pause()
        self._stopping = True
        self._may_poll.set()

    @property
    def _polls(self) -> bool:
        return self._may_poll.is_set() and not self._stopping

    async def _poll(self) -> None:
        while self._polls:
            try:
                updates = await self._unless_paused(self._get_updates())
                if updates:
                    await self._handle(updates)
            except Exception as error:  # of any type: polling must go on
                why = f"polling failed: {type(error).__name__}; retrying"
                self._logger.error("%s", why)
                self._report("error", why)
                self._healthy = False
                await self._unless_paused(self._pause(self._failures))
                self._failures += 1

    async def _unless_paused(self, work: Awaitable[T]) -> T | None:
        """Await some work; return None if a pause cut it short."""
        limit = asyncio.timeout(None if self._polls else 0)
        self._limits.add(limit)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                return None
            raise
        finally:
            self._limits.discard(limit)

    async def _get_updates(self) -> list[dict[str, Any]]:
        seconds = 0 if self._quick else self._config.poll_timeout_secs
        try:
            await self._inbound.identify()
            response = await self._api.call(
                "getUpdates",
                within=seconds + _RESPONSE_SECS,
                offset=self._bot.offset,
                timeout=seconds,
                limit=_BATCH,
                allowed_updates=UPDATE_KINDS,
            )
            if not isinstance(response, list):
                raise OutcomeUnknown("Telegram's response to getUpdates is not a list")
            updates = [item for item in response if isinstance(item, dict) and type(item.get("update_id")) is int]
            if response and not updates:  # nothing to confirm: the next poll would return the same at once
                raise OutcomeUnknown("Telegram's response to getUpdates has no update with a number")
        except TelegramError as error:
            await self._failed(error)
            return []
        self._quick = False
        self._failures = 0
        self._healthy = True
        self._report("connected", None)
        return updates

    async def _failed(self, error: TelegramError) -> None:
        if isinstance(error, RateLimited):
            if error.retry_after > LAST_PAUSE_SECS:
                why = f"Telegram sends no updates for the next {error.retry_after:.0f} s (429); retrying then"
                self._report("connected" if self._healthy else "disconnected", why)
            await sleep(self._clock, error.retry_after)
            return
        self._healthy = False
        state, detail = explain(error)
        self._report(state, detail)
        # Two programs that poll in turn would each succeed for an instant: only a whole poll shows who has the bot.
        self._quick = not isinstance(error, Conflict)
        await self._pause(self._failures)
        self._failures += 1

    async def _handle(self, updates: list[dict[str, Any]]) -> None:
        chats: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
        for update in updates:
            chats[_chat_of(update)].append(update)
        pending = {update["update_id"] for update in updates}
        after = max(pending) + 1
        async with asyncio.TaskGroup() as group:
            for chat_updates in chats.values():
                group.create_task(self._handle_chat(chat_updates, pending, after))

    async def _handle_chat(self, updates: list[dict[str, Any]], pending: set[int], after: int) -> None:
        async with self._slots:
            for update in updates:
                if not self._polls:
                    return
                number = update["update_id"]
                if not self._bot.is_done(number) and not await self._publish(update):
                    return
                pending.discard(number)
                self._bot.finish(number, min(pending, default=after))
                if not await self._retry_storage(self._bot.save):
                    return

    async def _publish(self, update: dict[str, Any]) -> bool:
        """Publish an update; return False if the next adapter must do it."""
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._retry_storage(lambda: self._inbound.publish(update))
            except Exception as error:
                # No traceback: it may contain what people wrote.
                self._logger.error(
                    "update %s cannot be handled (attempt %s of %s): %s",
                    update["update_id"],
                    attempt,
                    _TRIES,
                    type(error).__name__,
                )
            if attempt < _TRIES:
                await self._unless_paused(self._pause(attempt - 1))
                if not self._polls:
                    return False
        self._inbound.give_up(update)
        return True  # an update with an unexpected error must not block all others

    async def _retry_storage(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Repeat work while storage fails; return False if the adapter stops before it succeeds."""
        failures = 0
        while True:
            try:
                await work()
            except (StorageError, Closed) as error:
                self._logger.warning("an update waits: %s", error.message)
            else:
                return True
            if not self._polls:
                return False
            await self._unless_paused(self._pause(failures))
            failures += 1

    async def _pause(self, failures: int) -> None:
        longest = min(FIRST_PAUSE_SECS * 2.0 ** min(failures, 10), LAST_PAUSE_SECS)
        await sleep(self._clock, random.uniform(longest / 2, longest))


def _chat_of(update: dict[str, Any]) -> object:
    for kind in UPDATE_KINDS:
        match update.get(kind):
            case {"chat": {"id": int(chat)}}:
                return chat
    return None

"""The loop that asks Telegram for updates, and what its failures mean.

1. An update is done once its publish has returned. The offset on disk, which confirms to Telegram all updates below it,
   never passes one that is not done.
2. The chats of one answer are dealt with side by side, each in its order; the next question waits for all of them.
3. Nobody polls while another one of this process does. A hot reload's new adapter makes the old one stop at once,
   after the update that it has in hand: what comes next is judged by the new config.
4. A stop waits a moment for what is under way. What takes longer is not done, and the bus knows whether it was stored.
5. An update that fails in a way nobody foresaw is tried three times, with pauses. Then the person is told.

What goes wrong, as the adapter's status:

- 401, 404 → ``error``: the token is revoked or wrong. Asked again, since a typo in BotFather can be mended.
- 409 → ``error``: another program polls, or a webhook is set.
- no network, a time-out, a 5xx, an answer that is no Bot API or has no update that can be used → ``disconnected``.
- 429 → waits for as long as it says; the status stays, and says so if that is more than a minute.

After each, the pause doubles from 1 to 60 seconds, with jitter. A good answer makes it ``connected`` again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from relay_core.clock import Clock, sleep
from relay_core.errors import Closed, StorageError
from relay_core.messages.operator_views import StateName
from relay_supervisor.adapters.telegram.api import Api, Conflict, OutcomeUnknown, RateLimited, TelegramError, explain
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.config import TelegramConfig
from relay_supervisor.adapters.telegram.inbound import UPDATE_KINDS

Report = Callable[[StateName, str | None], None]
Take = Callable[[dict[str, Any]], Awaitable[None]]
GiveUp = Callable[[dict[str, Any]], None]
T = TypeVar("T")

FIRST_PAUSE_SECS = 1.0
LAST_PAUSE_SECS = 60.0
_ANSWER_SECS = 10.0
"""How much longer than the poll itself an answer may take."""
_SIDE_BY_SIDE = 8
_TRIES = 3
_BATCH = 100


class Poller:
    """Take updates in, until it is told to stop."""

    def __init__(
        self,
        config: TelegramConfig,
        api: Api,
        bot: Bot,
        clock: Clock,
        *,
        greet: Callable[[], Awaitable[None]],
        take: Take,
        give_up: GiveUp,
        report: Report,
        logger: logging.Logger,
    ) -> None:
        self._config = config
        self._api = api
        self._bot = bot
        self._clock = clock
        self._greet = greet
        """Learns who the bot is, if that is not known yet."""
        self._take = take
        self._give_up = give_up
        """Tells the person whose update cannot be dealt with."""
        self._report = report
        self._logger = logger
        self._failures = 0
        self._quick = True
        """Whether the next question is to be answered at once, to learn whether all is well."""
        self._well = False
        """Whether the latest answer was a good one."""
        self._stopping = False
        self._may_ask = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()
        """The waits that a pause cuts short."""
        self._places = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def run(self) -> None:
        """Poll until stopped, whenever it may."""
        while not self._stopping:
            await self._may_ask.wait()
            if await self._unless_paused(self._bot.polling.acquire()):  # another one may have an update in hand
                try:
                    await self._poll()
                finally:
                    self._bot.polling.release()

    def resume(self) -> None:
        """Ask for updates."""
        self._may_ask.set()

    def pause(self) -> None:
        """Ask for nothing more; the updates in hand go on."""
        self._may_ask.clear()
        for limit in self._limits:
            if limit.when() is None:  # not cut short yet
                limit.reschedule(asyncio.get_running_loop().time())

    def stop(self) -> None:
        """Ask for nothing more, and end."""
        self.pause()
        self._stopping = True
        self._may_ask.set()

    @property
    def _polls(self) -> bool:
        return self._may_ask.is_set() and not self._stopping

    async def _poll(self) -> None:
        while self._polls:
            try:
                updates = await self._unless_paused(self._ask())
                if updates:
                    await self._deal_with(updates)
            except Exception as error:  # whatever it is, people go on writing
                why = f"polling failed: {type(error).__name__}; it is tried again by itself"
                self._logger.error("%s", why)
                self._report("error", why)
                self._well = False
                await self._unless_paused(self._pause(self._failures))
                self._failures += 1

    async def _unless_paused(self, work: Awaitable[T]) -> T | None:
        """Return what some waiting leads to; None if it was cut short."""
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

    async def _ask(self) -> list[dict[str, Any]]:
        seconds = 0 if self._quick else self._config.poll_timeout_secs
        try:
            await self._greet()
            answer = await self._api.call(
                "getUpdates",
                within=seconds + _ANSWER_SECS,
                offset=self._bot.offset,
                timeout=seconds,
                limit=_BATCH,
                allowed_updates=UPDATE_KINDS,
            )
            if not isinstance(answer, list):
                raise OutcomeUnknown("Telegram's answer to getUpdates is no list")
            updates = [one for one in answer if isinstance(one, dict) and type(one.get("update_id")) is int]
            if answer and not updates:  # nothing to confirm: the next question would be answered alike, at once
                raise OutcomeUnknown("Telegram's answer to getUpdates has no update with a number")
        except TelegramError as error:
            await self._failed(error)
            return []
        self._quick = False
        self._failures = 0
        self._well = True
        self._report("connected", None)
        return updates

    async def _failed(self, error: TelegramError) -> None:
        if isinstance(error, RateLimited):
            if error.retry_after > LAST_PAUSE_SECS:
                why = f"Telegram gives no updates for the next {error.retry_after:.0f} s (429); it goes on by itself"
                self._report("connected" if self._well else "disconnected", why)
            await sleep(self._clock, error.retry_after)
            return
        self._well = False
        state, detail = explain(error)
        self._report(state, detail)
        # Two programs that poll in turn would each be well for an instant: only a whole poll shows who has the bot.
        self._quick = not isinstance(error, Conflict)
        await self._pause(self._failures)
        self._failures += 1

    async def _deal_with(self, updates: list[dict[str, Any]]) -> None:
        chats: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
        for update in updates:
            chats[_place(update)].append(update)
        pending = {update["update_id"] for update in updates}
        after = max(pending) + 1
        async with asyncio.TaskGroup() as group:
            for line in chats.values():
                group.create_task(self._deal_with_line(line, pending, after))

    async def _deal_with_line(self, line: list[dict[str, Any]], pending: set[int], after: int) -> None:
        async with self._places:
            for update in line:
                if not self._polls:
                    return
                number = update["update_id"]
                if not self._bot.is_done(number) and not await self._publish(update):
                    return
                pending.discard(number)
                self._bot.finish(number, min(pending, default=after))
                if not await self._patiently(self._bot.save):
                    return

    async def _publish(self, update: dict[str, Any]) -> bool:
        """Publish an update; False if it has to be tried by the next one that runs."""
        number: int = update["update_id"]
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._patiently(lambda: self._take(update))
            except Exception as error:
                # No traceback: its locals and texts may have what people wrote.
                self._logger.error(
                    "update %s cannot be dealt with (try %s of %s): %s",
                    number,
                    attempt,
                    _TRIES,
                    type(error).__name__,
                )
            if attempt < _TRIES:
                await self._unless_paused(self._pause(attempt - 1))
                if not self._polls:
                    return False
        self._give_up(update)
        return True  # one update that nobody foresaw must not keep all others waiting for ever

    async def _patiently(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do work again and again while the disk refuses; False if the adapter stops before it succeeds."""
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


def _place(update: dict[str, Any]) -> object:
    for kind in UPDATE_KINDS:
        match update.get(kind):
            case {"chat": {"id": int(chat)}}:
                return chat
    return None

"""Sends a message of the bus as Telegram messages, each at most once.

1. The text is sent in parts, in order, the first as a reply to the message it answers. Files follow.
2. A part whose HTML Telegram cannot parse is sent again as plain text: the first attempt had no effect.
3. A part that was certainly not sent may be sent again. Before the first part this is left to the bus (`retry_after`:
   the message waits at the head of its lane). After it, the rest waits here: no part is sent twice.
4. A part that may have been sent is never sent again: a lost response, a 5xx or an invalid response fails the delivery,
   and the dead letter says how many parts were sent.
5. A chat that is not allowed is never written to.
6. A part is started only if there is time to complete it before the bus's timeout, so the dead letter of a message that
   took too long says how many parts were sent.

By Telegram's response: 429 and no network: the message waits. 401: it waits, and the adapter's status says why. 403,
`chat not found`, a group with a new id, any other refusal: it fails with the code.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from relay_core.adapters.interface import DeliveryContext, DeliveryResult
from relay_core.clock import Clock, sleep
from relay_core.messages.envelope import Envelope
from relay_core.messages.payload import Attachment, Performative
from relay_supervisor.adapters.telegram.api import (
    FILE_SECS,
    Api,
    BadMarkup,
    BadToken,
    GroupMigrated,
    NotSent,
    OutcomeUnknown,
    RateLimited,
    TelegramError,
    explain,
)
from relay_supervisor.adapters.telegram.attachments import AttachmentRefused, Attachments
from relay_supervisor.adapters.telegram.bot import Bot
from relay_supervisor.adapters.telegram.chats import chat_of, clean, may_write, subject_of
from relay_supervisor.adapters.telegram.config import TelegramConfig
from relay_supervisor.adapters.telegram.formatting import MAX_FILES, Document, Piece, Text, cut, read_payload
from relay_supervisor.adapters.telegram.inbound import message_of
from relay_supervisor.adapters.telegram.polling import Report
from relay_supervisor.adapters.telegram.presence import Presence

TIMEOUT_SECS = 180.0
_MARGIN_SECS = 5.0
"""How much earlier than the bus's timeout ours ends."""
_PATIENCE_SECS = 5.0
"""How long a message that has not been started waits here for its turn."""
_BAD_TOKEN_SECS = 30.0
_LONGEST_PAUSE_SECS = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """The parts to send for one message."""

    chat: int
    pieces: tuple[Piece, ...]
    reply_to: int | None
    request: str | None
    """The message of the bus that it answers."""
    deadline: float
    """The clock's time by which everything must have been sent."""


class Refusal(Exception):
    """A message is not sent."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class Outbound:
    """Send messages to chats."""

    def __init__(
        self,
        adapter_id: str,
        config: TelegramConfig,
        api: Api,
        bot: Bot,
        clock: Clock,
        attachments: Attachments,
        presence: Presence,
        report: Report,
    ) -> None:
        self._id = adapter_id
        self._config = config
        self._api = api
        self._bot = bot
        self._clock = clock
        self._attachments = attachments
        self._presence = presence
        self._report = report
        self._unreached = 0
        """Consecutive deliveries that found no network."""

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Send one message."""
        deadline = self._clock.monotonic() + TIMEOUT_SECS - _MARGIN_SECS
        try:
            job = await self._plan(envelope, context, deadline)
        except Refusal as refusal:
            return DeliveryResult(ok=False, error=str(refusal), code=refusal.code)
        wait = self._bot.limits.wait(job.chat)
        if wait > _PATIENCE_SECS:
            return DeliveryResult(ok=False, error="the chat's limit is used up", code="429", retry_after=wait)
        async with self._presence.quiet(job.chat):
            result = await self._send_all(job, context)
        if result.retry_after is None:
            self._presence.answered(job.chat, job.request)
        return result

    async def _plan(self, envelope: Envelope, context: DeliveryContext, deadline: float) -> Job:
        chat = chat_of(self._id, envelope.subject)
        if chat is None:
            raise Refusal(f"{envelope.subject} is not a chat's subject: it ends in .CHAT or .group.-CHAT", "no_chat")
        if not may_write(self._config, chat):
            key = "allowChats" if chat < 0 else "allowUsers"
            raise Refusal(f"chat {chat} is not allowed: add it to {key} of the adapter's config", "not_allowed")
        payload = read_payload(envelope.payload)
        files = payload.attachments or ()
        if len(files) > MAX_FILES:
            why = f"the message has {len(files)} files, more than {MAX_FILES}: send several messages"
            raise Refusal(why, "too_many_files")
        try:
            for file in files:
                await asyncio.to_thread(self._attachments.check, file)
        except AttachmentRefused as refused:
            raise Refusal(str(refused), "attachment_refused") from None
        text = clean(payload.content)
        if payload.performative == Performative.FAILURE:
            text = f"⚠️ {text}"
        pieces = (*await asyncio.to_thread(cut, text), *files)
        if not pieces:
            raise Refusal("the message has neither a text nor a file", "empty")
        requests = (payload.correlation_id, context.parent_id, context.trace_id)
        known = [(request, self._bot.find_origin(request, chat)) for request in requests]
        request, number = next(((request, number) for request, number in known if number is not None), (None, None))
        reply_to = message_of(payload.correlation_id, chat) or number
        return Job(chat, pieces, reply_to, request, deadline)

    async def _send_all(self, job: Job, context: DeliveryContext) -> DeliveryResult:
        sent: list[int] = []
        for piece in job.pieces:
            try:
                loaded = await self._load(piece)
            except AttachmentRefused as refused:
                return _failed(str(refused), "attachment_refused", len(sent), job)
            plain = False
            while True:
                patience = job.deadline - self._clock.monotonic() - self._longest(piece)
                if patience <= 0 or not await self._bot.limits.acquire(job.chat, patience):
                    return self._out_of_time(job, len(sent))
                try:
                    sent.append(await self._send(job, loaded, plain=plain, reply_to=None if sent else job.reply_to))
                    self._unreached = 0
                    break
                except TelegramError as error:
                    if isinstance(error, BadMarkup) and not plain:
                        plain = True
                        continue
                    wait = self._wait_after(error, job.chat)
                    if wait is not None and not sent:
                        return DeliveryResult(ok=False, error=str(error), code=error.code, retry_after=wait)
                    left = min(job.deadline - self._clock.monotonic() - self._longest(piece), context.remaining)
                    if wait is None or wait >= left:
                        return _failed(_describe(error, self._id), error.code, len(sent), job)
                    await sleep(self._clock, wait)
        return DeliveryResult(ok=True, detail=f"telegram message {', '.join(map(str, sent))}")

    async def _load(self, piece: Piece) -> Text | Document:
        return await asyncio.to_thread(self._attachments.read, piece) if isinstance(piece, Attachment) else piece

    def _longest(self, piece: Piece) -> float:
        """Return the seconds that sending a piece may take."""
        return self._config.request_timeout_secs if isinstance(piece, Text) else FILE_SECS

    def _out_of_time(self, job: Job, sent: int) -> DeliveryResult:
        if not sent:
            wait = max(self._bot.limits.wait(job.chat), 1.0)
            return DeliveryResult(ok=False, error="the chat's limit is used up", code="429", retry_after=wait)
        why = f"out of time: limits and slow responses used up the {TIMEOUT_SECS:.0f} s for a message"
        return _failed(why, "out_of_time", sent, job)

    async def _send(self, job: Job, piece: Text | Document, *, plain: bool, reply_to: int | None) -> int:
        common: dict[str, Any] = {"chat_id": job.chat}
        if reply_to is not None:
            common["reply_parameters"] = {"message_id": reply_to, "allow_sending_without_reply": True}
        if not isinstance(piece, Text):
            return _number(await self._api.call("sendDocument", within=FILE_SECS, document=piece, **common))
        if plain or not piece.html.strip():
            return _number(await self._api.call("sendMessage", text=piece.plain, **common))
        return _number(await self._api.call("sendMessage", text=piece.html, parse_mode="HTML", **common))

    def _wait_after(self, error: TelegramError, chat: int) -> float | None:
        """Return the seconds after which the same part may be sent again; None if it must not be."""
        match error:
            case RateLimited():
                self._bot.limits.hold(chat, error.retry_after)
                return error.retry_after
            case NotSent():
                self._unreached += 1
                return min(2.0 ** min(self._unreached - 1, 10), _LONGEST_PAUSE_SECS)
            case BadToken():
                self._report(*explain(error))
                return _BAD_TOKEN_SECS
            case _:
                return None


def _number(sent: Any) -> int:
    number = sent.get("message_id") if isinstance(sent, dict) else None
    if type(number) is not int:
        raise OutcomeUnknown("Telegram's response does not name the sent message")
    return number


def _describe(error: TelegramError, adapter_id: str) -> str:
    if isinstance(error, GroupMigrated):
        return (
            f"the group has become a supergroup with the id {error.chat}: add it to allowChats, "
            f"and bind and write to {subject_of(adapter_id, error.chat)} from now on"
        )
    if isinstance(error, OutcomeUnknown):
        return f"{error}; it may have been sent nevertheless: check the chat before a replay"
    return str(error)


def _failed(text: str, code: str, sent: int, job: Job) -> DeliveryResult:
    if sent:
        text += f" ({sent} of {len(job.pieces)} parts were sent: a replay sends them again)"
    return DeliveryResult(ok=False, error=text, code=code)

"""What ``replyTo`` gets from a turn: typing, progress, and one answer.

1. Typing and progress are signals for current listeners. Progress is sent at most every `PROGRESS_SECS`, with the
   latest text.
2. The answer is one message, a reply to the request (so that hops, ancestors and the budget count), with its
   correlation id. A replay answers again; any other second publish is deduplicated.
3. An answer that is longer than a message may be is cut, and says so.
4. An answer that is refused for a transient reason (an open breaker, a full mailbox, the rate limit, storage) is
   published again, after pauses that grow to `LONGEST_PAUSE_SECS`, until the turn's time is over: the work is done, and
   must not be lost because a consumer is busy. Any other refusal is a failure at once.
5. A failure says where the work is: in the session's transcript and, if nothing else has kept it, its beginning is in
   the failure itself. Not if ``replyTo``, which is notified of the failure, may not read it. An answer without a
   consumer, or over the budget, becomes a dead letter itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

import orjson

from relay_core.adapters.interface import AdapterContext, DeliveryContext
from relay_core.clock import Timer, call_later, iso
from relay_core.errors import Closed, InvalidPayload, RelayError, StorageError
from relay_core.messages.envelope import Envelope
from relay_core.messages.payload import Performative, StandardPayload
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalType
from relay_supervisor.adapters.platform import wait_event

PROGRESS_SECS = 0.3
PROGRESS_CHARS = 2000
FIRST_PAUSE_SECS = 1.0
LONGEST_PAUSE_SECS = 60.0
KEPT_CHARS = 2000


class AnswerLost(Exception):
    """The answer did not reach its recipient; the message is for operators."""

    def __init__(self, why: str, code: str, *, transient: bool = False, kept: bool = False) -> None:
        super().__init__(why)
        self.code = code
        self.transient = transient
        """True if another attempt may succeed."""
        self.kept = kept
        """True if the answer is kept elsewhere, or must not be shown."""


class Answer:
    """The signals and the answer of one turn, as a context manager around it."""

    def __init__(self, context: AdapterContext, envelope: Envelope, delivery: DeliveryContext) -> None:
        request = envelope.payload if isinstance(envelope.payload, dict) else {}
        self._context = context
        self._envelope = envelope
        self._delivery = delivery
        self._conversation_id = _text(request.get("conversationId"))
        self._correlation_id = _text(request.get("correlationId")) or envelope.id
        self._sent_at: float | None = None
        self._latest: str | None = None
        self._timer: Timer | None = None
        self._woken = asyncio.Event()
        self._hurried = False

    def __enter__(self) -> Self:
        self._signal(SignalType.TYPING, "started")
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._signal(SignalType.TYPING, "stopped")

    def progress(self, text: str) -> None:
        """Send progress, now or after the minimum interval."""
        self._latest = text
        if self._timer is not None or self._envelope.reply_to is None:
            return
        clock = self._context.clock
        wait = 0.0 if self._sent_at is None else self._sent_at + PROGRESS_SECS - clock.monotonic()
        if wait > 0:
            self._timer = call_later(clock, wait, self._send_progress)
        else:
            self._send_progress()

    async def publish(self, text: str, patience: float) -> None:
        """Publish the answer; retry for `patience` seconds while the refusal is transient.

        Raises:
            AnswerLost: if it is not accepted.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + patience
        pause = FIRST_PAUSE_SECS
        while True:
            try:
                await self._try(text)
                return
            except AnswerLost as lost:
                left = deadline - clock.monotonic()
                if not lost.transient or left <= 0 or self._hurried:
                    raise
            await wait_event(clock, self._woken, min(pause, left))  # a stop cuts it short
            self._woken.clear()
            pause = min(pause * 2, LONGEST_PAUSE_SECS)

    def hurry(self) -> None:
        """Retry at most once more."""
        self._hurried = True
        self._woken.set()

    async def _try(self, text: str) -> None:
        reply_to = self._envelope.reply_to
        assert reply_to is not None
        try:
            result = await self._publish_fitting(reply_to, text)
        except StorageError as error:
            raise AnswerLost(f"the answer could not be stored: {error.message}", error.code, transient=True) from error
        except Closed as error:
            raise AnswerLost(f"the answer was not sent: {error.message}", error.code) from error
        except RelayError as error:
            raise AnswerLost(f"the answer was refused: {error.message}", error.code, kept=True) from error
        if result.delivered_to:
            return
        transient = bool(result.put_off)
        reasons = {rejection.reason for rejection in result.rejected or ()}
        reasons |= {adapter.error for adapter in result.adapter_results or () if adapter.error}
        why = ", ".join(sorted(reasons)) or "it has no consumer"
        raise AnswerLost(
            f"the answer did not reach {reply_to}: {why}", "answer_refused", transient=transient, kept=not transient
        )

    async def _publish_fitting(self, reply_to: str, text: str) -> PublishResult:
        try:
            return await self._publish(reply_to, text)
        except InvalidPayload as error:
            if error.code != "payload_too_large" or error.limit is None:
                raise
            return await self._publish(reply_to, self._cut(text, error.limit))

    async def _publish(self, reply_to: str, text: str) -> PublishResult:
        envelope = self._envelope
        return await self._delivery.publish(
            reply_to,
            self._payload(text),
            sender=envelope.subject,
            dedupe_id=f"answer-{envelope.id}-{envelope.replays}",
            echo=True,
        )

    def _payload(self, text: str) -> StandardPayload:
        return StandardPayload(
            content=text,
            performative=Performative.INFORM,
            conversation_id=self._conversation_id,
            correlation_id=self._correlation_id,
            platform_data={"messageId": self._envelope.id},
        )

    def _cut(self, text: str, limit: int) -> str:
        """Return as much of a text as fits into a message as JSON."""
        note = "\n\n[cut: the answer was longer than a message may be]"
        low, high = 0, min(len(text), limit)
        while low < high:
            middle = (low + high + 1) // 2
            if len(orjson.dumps(self._payload(text[:middle] + note).to_wire())) <= limit:
                low = middle
            else:
                high = middle - 1
        return text[:low] + note

    def _send_progress(self) -> None:
        self._timer = None
        self._sent_at = self._context.clock.monotonic()
        if self._latest is not None:
            self._signal(SignalType.PROGRESS, "working", text=self._latest[:PROGRESS_CHARS])

    def _signal(self, type: SignalType, state: str, **data: str) -> None:
        envelope = self._envelope
        if envelope.reply_to is None:
            return
        signal = Signal(
            type=type,
            state=state,
            endpoint_subject=envelope.subject,
            timestamp=iso(self._context.clock.now_ms()),
            data={"messageId": envelope.id, "correlationId": self._correlation_id, **data},
        )
        with suppress(RelayError):  # a denied or closed signal must not fail the turn
            self._context.signal(envelope.reply_to, signal)


def excerpt(text: str) -> str:
    """Return the beginning of a text, cut between words so that the redaction finds every secret whole."""
    if len(text) <= KEPT_CHARS:
        return text
    words = text[: KEPT_CHARS + 1].rsplit(maxsplit=1)
    return f"{words[0] if len(words) > 1 else ''}…"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

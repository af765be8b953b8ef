"""What whoever waits at ``replyTo`` hears of a turn: that the agent is at work, what it does, and the one result.

1. Typing and progress are signals: they reach whoever listens now. Progress comes at most `PROGRESS_SECS` apart, the
   latest of what was said meanwhile.
2. The result is one message, an answer to the one that asked (so that hops, ancestors and the budget count), with its
   correlation id. A replay answers anew; anything else that publishes it twice is deduplicated.
3. A result that is longer than a message may be is cut, and says so.
4. A result that is refused for a reason that passes (an open breaker, a full mailbox, the rate limit, a disk that
   refuses) is published again, after pauses that grow to `LONGEST_PAUSE_SECS`, for as long as the turn may take: the
   work has been done, and must not be lost because somebody is busy. Any other refusal is a failure at once.
5. A failure says where the work is: in the session's transcript, and, if nothing else has kept it, its beginning
   is in the failure itself. Not if it may not be told to ``replyTo``, which hears of the failure too. Somebody
   who is not there, or a budget that is used up, leaves the result itself as a dead letter.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import orjson

from relay_core.adapters.interface import AdapterContext, DeliveryContext
from relay_core.clock import Timer, call_later, iso
from relay_core.errors import Closed, InvalidPayload, RelayError, StorageError
from relay_core.messages.envelope import Envelope
from relay_core.messages.payload import Performative, StandardPayload
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalType

PROGRESS_SECS = 0.3
PROGRESS_CHARS = 2000
FIRST_PAUSE_SECS = 1.0
LONGEST_PAUSE_SECS = 60.0
KEPT_CHARS = 2000


class AnswerLost(Exception):
    """The result did not reach whoever asked; the text is for operators."""

    def __init__(self, why: str, code: str, *, passing: bool = False, kept: bool = False) -> None:
        super().__init__(why)
        self.code = code
        self.passing = passing
        """Whether another try may succeed."""
        self.kept = kept
        """Whether the result is kept somewhere, or must not be."""


class Answer:
    """One turn, as seen from ``replyTo``; entered while the turn runs."""

    def __init__(self, context: AdapterContext, envelope: Envelope, delivery: DeliveryContext) -> None:
        asked = envelope.payload if isinstance(envelope.payload, dict) else {}
        self._context = context
        self._envelope = envelope
        self._delivery = delivery
        self._conversation_id = _text(asked.get("conversationId"))
        self._correlation_id = _text(asked.get("correlationId")) or envelope.id
        self._said_at: float | None = None
        self._latest: str | None = None
        self._timer: Timer | None = None
        self._woken = asyncio.Event()
        self._hurried = False

    def __enter__(self) -> Self:
        self._signal(SignalType.TYPING, "started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._signal(SignalType.TYPING, "stopped")

    def progress(self, text: str) -> None:
        """Tell what the agent says or does, now or shortly."""
        self._latest = text
        if self._timer is not None or self._envelope.reply_to is None:
            return
        clock = self._context.clock
        wait = 0.0 if self._said_at is None else self._said_at + PROGRESS_SECS - clock.monotonic()
        if wait > 0:
            self._timer = call_later(clock, wait, self._say)
        else:
            self._say()

    async def publish(self, text: str, patience: float) -> None:
        """Publish the result, again and again for `patience` seconds if that may help.

        Raises:
            AnswerLost: if it is refused all the same.
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
                if not lost.passing or left <= 0 or self._hurried:
                    raise
            await self._pause(min(pause, left))
            pause = min(pause * 2, LONGEST_PAUSE_SECS)

    def hurry(self) -> None:
        """Try no longer than it takes to try once more."""
        self._hurried = True
        self._woken.set()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not for ever if the adapter stops."""
        timer = call_later(self._context.clock, seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
            self._woken.clear()

    async def _try(self, text: str) -> None:
        reply_to = self._envelope.reply_to
        assert reply_to is not None
        try:
            result = await self._publish_fitting(reply_to, text)
        except StorageError as error:
            raise AnswerLost(f"the answer could not be stored: {error.message}", error.code, passing=True) from error
        except Closed as error:
            raise AnswerLost(f"the answer was not sent: {error.message}", error.code) from error
        except RelayError as error:
            raise AnswerLost(f"the answer was refused: {error.message}", error.code, kept=True) from error
        if result.delivered_to:
            return
        passing = bool(result.put_off)
        reasons = {rejection.reason for rejection in result.rejected or ()}
        reasons |= {one.error for one in result.adapter_results or () if one.error}
        why = ", ".join(sorted(reasons)) or "nobody takes messages there"
        raise AnswerLost(
            f"the answer did not reach {reply_to}: {why}", "answer_refused", passing=passing, kept=not passing
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
        """Return as much of a text as fits into a message; how long it is as JSON depends on what is in it."""
        note = "\n\n[cut: the answer was longer than a message may be]"
        least, most = 0, min(len(text), limit)
        while least < most:
            middle = (least + most + 1) // 2
            if len(orjson.dumps(self._payload(text[:middle] + note).to_wire())) <= limit:
                least = middle
            else:
                most = middle - 1
        return text[:least] + note

    def _say(self) -> None:
        self._timer = None
        self._said_at = self._context.clock.monotonic()
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
        with suppress(RelayError):  # a turn does not fail because nobody may hear of it, or hears no more
            self._context.signal(envelope.reply_to, signal)


def beginning(text: str) -> str:
    """Return the beginning of a text, cut between words, so that no half of a secret escapes its concealing."""
    if len(text) <= KEPT_CHARS:
        return text
    words = text[: KEPT_CHARS + 1].rsplit(maxsplit=1)
    return f"{words[0] if len(words) > 1 else ''}…"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None

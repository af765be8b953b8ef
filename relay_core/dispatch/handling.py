"""Handling: deliver a claimed message to its consumers, and complete, dead-letter or requeue it.

1. The TTL is checked, then all consumers run concurrently, each with its own timeout.
2. All consumers failed → dead letter. Some failed → completed, status `partial`, every outcome recorded.
3. The breaker records exactly one outcome per delivery, after the consumers.
4. At most once: the message is requeued at the head of the queue only if every consumer raised `Requeue`. Then neither
   the breaker nor the message gets an outcome.
5. With several consumers, some may have handled the message by then. So it stays claimed, and a pool member that did
   not take it is replaced by another member of the pool, within the handler timeout: this delivery may hold the member
   that the other one waits for. Without a replacement this consumer has failed, unless all others raised `Requeue` too.
6. The completion is recorded before the last consumer acknowledges (`Ack`). If the disk refuses, the message stays in
   flight, or, if the consumer has returned, claimed until the disk accepts it.
7. A pool member is released as soon as it has finished, regardless of the other consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from types import coroutine
from typing import Any

from relay_core.clock import Clock
from relay_core.dispatch.consumer import Ack, Completion, Consumer, Requeue
from relay_core.dispatch.consumers import Consumers
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.worker_pool import MemberLease
from relay_core.journal.commit import Commits
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Status, TargetKind
from relay_core.messages.envelope import Envelope
from relay_core.records.recorder import Recorder
from relay_core.rules.breaker import CircuitBreakers
from relay_core.rules.replies import ReplyRules
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import StoredMessage

logger = logging.getLogger(__name__)

Failure = tuple[str, str]
"""A code and a reason."""


class Handling:
    """Deliver claimed messages."""

    def __init__(
        self,
        consumers: Consumers,
        breakers: CircuitBreakers,
        commits: Commits,
        dead_letter_writer: DeadLetterWriter,
        recorder: Recorder,
        clock: Clock,
        replies: ReplyRules,
    ) -> None:
        self._replies = replies
        self._consumers = consumers
        self._breakers = breakers
        self._commits = commits
        self._dead_letter_writer = dead_letter_writer
        self._recorder = recorder
        self._clock = clock
        self.on_settled: Callable[[StoredMessage, bool], None] | None = None
        """Called with every message whose delivery has ended, and whether it was handled."""

    def begin(self, mailbox: Mailbox, message: StoredMessage) -> None:
        """Record that a claimed message is about to be handled.

        Raises:
            OSError: if that cannot be written; the message is waiting again.
        """
        try:
            self._commits.note_claimed(mailbox.hash, message.id)
        except OSError:
            mailbox.requeue(message)
            raise

    async def deliver(
        self,
        mailbox: Mailbox,
        message: StoredMessage,
        consumers: Sequence[Consumer],
        timeout: float,
        probe: bool,
        lease: MemberLease | None = None,
    ) -> bool:
        """Deliver a claimed message; return False if it had to be requeued and the disk refused.

        `lease` holds the members of pools among the consumers.
        """
        try:
            await self._handle(mailbox, message, consumers, timeout, probe, lease)
        except Requeue as error:
            if probe:
                self._breakers.release(mailbox.hash)
            return await self._requeue(mailbox, message, error)
        except asyncio.CancelledError:
            # The bus is closing and its grace period is over: the handler may have run.
            if message.ended:
                self._complete(mailbox, message)
            elif message.id in mailbox.claimed:
                reason = "the bus was closed meanwhile"
                await self._dead_letter_writer.dead_letter_or_retry(
                    mailbox, message, code=Code.INTERRUPTED, reason=reason
                )
            raise
        return True

    async def _handle(
        self,
        mailbox: Mailbox,
        message: StoredMessage,
        consumers: Sequence[Consumer],
        timeout: float,
        probe: bool,
        lease: MemberLease | None,
    ) -> None:
        delivery, clock = message.delivery, self._clock
        now = clock.now_ms()
        if now > message.envelope.budget.ttl:
            if probe:
                self._breakers.release(mailbox.hash)
            await self._fail(mailbox, message, Code.EXPIRED, "message expired (TTL)")
            return
        if message.envelope.reply_to is not None:
            self._replies.handed(mailbox.subject, message.envelope)
        started = clock.monotonic()
        delivery.claimed_ms = claimed_ms = _wall_time(delivery.stored_ms, message.stored_at, started, now)
        outcomes: Sequence[Failure | None]
        if len(consumers) > 1:
            consumers, outcomes = await self._call_all(mailbox, consumers, message, timeout, lease)
        else:
            ack = Ack(Completion(lambda: self._record_completion(mailbox, message)))
            outcomes = [await _call(consumers[0], message.envelope, timeout, ack)]
            if lease is not None:
                lease.release_all()
        delivery.handled_ms = claimed_ms + (clock.monotonic() - started) * 1000
        failures = [outcome for outcome in outcomes if outcome is not None]
        if len(failures) == len(outcomes):
            self._breakers.record_failure(mailbox.hash, probe=probe)
            delivery.outcomes = _outcomes(consumers, outcomes)
            await self._fail(mailbox, message, *failures[0])
            return
        self._breakers.record_success(mailbox.hash, probe=probe)
        if failures:
            delivery.status = Status.PARTIAL
            delivery.code, delivery.reason = failures[0]
            delivery.outcomes = _outcomes(consumers, outcomes)
        else:
            delivery.status = Status.DONE
            # For a pool they name the member; for a replay they replace those of the failure.
            if len(outcomes) > 1 or lease is not None or delivery.replays:
                delivery.outcomes = _outcomes(consumers, outcomes)
        self._complete(mailbox, message)

    async def _call_all(
        self,
        mailbox: Mailbox,
        consumers: Sequence[Consumer],
        message: StoredMessage,
        timeout: float,
        lease: MemberLease | None,
    ) -> tuple[list[Consumer], list[Failure | None]]:
        """Run several consumers; return those that ran in the end, and the failure of each.

        Raises:
            Requeue: if none has taken the message.
        """
        completion = Completion(lambda: self._record_completion(mailbox, message), len(consumers))
        results = await asyncio.gather(
            *(self._call_member(mailbox, consumer, message, timeout, lease, Ack(completion)) for consumer in consumers)
        )
        failures: list[Failure | None] = []
        requeues: list[Requeue] = []
        for consumer, outcome in results:
            if isinstance(outcome, Requeue):
                requeues.append(outcome)
                outcome = (Code.DISCONNECTED, f"{consumer.name}: {outcome}, and no other consumer can take it")
            failures.append(outcome)
        if len(requeues) == len(results):
            raise requeues[0]
        return [consumer for consumer, _ in results], failures

    async def _call_member(
        self,
        mailbox: Mailbox,
        consumer: Consumer,
        message: StoredMessage,
        timeout: float,
        lease: MemberLease | None,
        ack: Ack,
    ) -> tuple[Consumer, Failure | Requeue | None]:
        """Run one of several consumers, or its replacement; return the one that ran, and its failure."""
        while True:
            try:
                outcome = await _call(consumer, message.envelope, timeout, ack)
            except Requeue as error:
                other: Consumer | None = None
                if lease is not None and consumer.pool is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timeout):
                            other = await lease.replace(consumer, lambda: self._consumers(mailbox)[0])
                if other is None:
                    ack.close()
                    return consumer, error
                consumer = other
            else:
                if lease is not None:
                    lease.release(consumer)
                ack.close()
                return consumer, outcome

    async def _requeue(self, mailbox: Mailbox, message: StoredMessage, why: Requeue) -> bool:
        try:
            requeued = mailbox.requeue(message)
        except OSError as error:
            logger.error("%s: cannot requeue %s: %s", mailbox.subject, message.id, error)
            requeued = False
        if requeued:
            self._commits.note_requeued(mailbox.hash, message.id)
            if message.fanout is not None:
                message.fanout.postponed(message)
        else:
            await self._fail(mailbox, message, Code.HANDLER_FAILED, f"{why}, and it could not be requeued")
        return requeued

    def _complete(self, mailbox: Mailbox, message: StoredMessage) -> None:
        try:
            if not message.ended:
                self._record_completion(mailbox, message)
            mailbox.claimed.pop(message.delivery.message_id, None)
        except OSError as error:
            self._dead_letter_writer.finish_later(mailbox, message, error)
        self._recorder.handled(message.delivery)
        if message.fanout is not None:
            message.fanout.succeeded(message)
        if self.on_settled is not None:
            self.on_settled(message, True)

    def _record_completion(self, mailbox: Mailbox, message: StoredMessage) -> None:
        self._commits.finish(mailbox.hash, mailbox.maildir, message.delivery.message_id)
        message.ended = True

    async def _fail(self, mailbox: Mailbox, message: StoredMessage, code: str, reason: str) -> None:
        if message.delivery.kind == TargetKind.ADAPTER and code in (Code.HANDLER_FAILED, Code.TIMEOUT):
            code, reason = Code.ADAPTER_FAILED, f"adapter delivery failed: {reason}"
        if message.fanout is not None:
            message.fanout.failed(message, code, reason)
        else:
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, message, code=code, reason=reason)
        if self.on_settled is not None:
            self.on_settled(message, False)


async def _call(consumer: Consumer, envelope: Envelope, timeout: float, ack: Ack) -> Failure | None:
    """Run one consumer; return its failure, or None."""
    limit = asyncio.timeout(None if consumer.enforces_timeout else timeout)
    work = consumer.deliver(envelope, ack)
    try:
        try:
            # A handler that never waits needs no timer, which would cost more than everything else here.
            first = work.send(None)
        except StopIteration:
            return None
        async with limit:
            await _resume(work, first)
    except TimeoutError as error:
        if ack.finished:
            return None  # it was acknowledged just before the timeout
        if limit.expired():
            return Code.TIMEOUT, f"{consumer.name}: no answer within {timeout:g} s"
        return Code.HANDLER_FAILED, f"{consumer.name}: {_describe(error)}"
    except Requeue:
        raise
    except Exception as error:
        own_code = getattr(error, "dead_letter_code", None)  # then its text is meant for operators
        return own_code or Code.HANDLER_FAILED, f"{consumer.name}: {error if own_code else _describe(error)}"
    return None


@coroutine
def _resume(work: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Resume a coroutine that was started and awaits `waiting`."""
    while True:
        try:
            try:
                answer = yield waiting
            except BaseException as error:
                waiting = work.throw(error)
            else:
                waiting = work.send(answer)
        except StopIteration:
            return


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _outcomes(consumers: Sequence[Consumer], outcomes: Sequence[Failure | None]) -> list[dict[str, Any]]:
    return [
        {"handler": consumer.name, "ok": outcome is None, "error": outcome[1] if outcome else None}
        | ({} if consumer.pool is None else {"queue": consumer.pool.name, "subscription": consumer.id})
        for consumer, outcome in zip(consumers, outcomes, strict=True)
    ]


def _wall_time(stored_ms: float | None, stored_at: float, now: float, wall_ms: int) -> float:
    """Return the wall time of `now`, derived from the time at which the message was stored."""
    if stored_ms is None or not stored_at:
        return max(float(wall_ms), stored_ms or 0.0)
    return stored_ms + (now - stored_at) * 1000

"""Handling: what becomes of a claimed message: it is completed, dead-lettered or requeued.

1. The TTL is checked, then all consumers run concurrently, each with its own timeout.
2. All consumers failed → dead letter. Some failed → completed, status `partial`, every outcome recorded.
3. The breaker records exactly one outcome per delivery, after the consumers.
4. At most once: the message is requeued at the head of the queue only if every consumer raised `Requeue`. Then neither
   the breaker nor the message gets an outcome.
5. With several consumers, some may have handled the message by then. So it stays claimed, and a pool member that did
   not take it is replaced by another member of the pool, within the handler timeout: this delivery may hold the member
   that the other one waits for. Without a replacement this consumer has failed, unless all others raised `Requeue` too.
6. The completion is recorded before the last consumer's `Ack` returns. If the disk refuses, the message stays in
   flight, or, if the consumer has returned or expects no answer, claimed until the disk accepts it.
7. A pool member is released as soon as it has finished, regardless of the other consumers.

A message with a single consumer outside of pools is delivered by turns.py, which uses the parts here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from types import coroutine
from typing import Any

from relay_core.clock import Clock
from relay_core.dispatch.consumer import Ack, Consumer, Requeue
from relay_core.dispatch.consumers import Consumers
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.dispatch.worker_pool import MemberLease
from relay_core.journal.commit import Commits
from relay_core.messages.dead_letter import Code
from relay_core.messages.delivery import Status, TargetKind
from relay_core.records.recorder import Recorder
from relay_core.rules.breaker import CircuitBreakers
from relay_core.rules.replies import ReplyRules
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import StoredMessage

logger = logging.getLogger(__name__)

Failure = tuple[str, str]
"""A code and a reason."""
EXPIRED: Failure = (Code.EXPIRED, "message expired (TTL)")


class Completion:
    """The completion of one message, recorded by the last of its consumers."""

    __slots__ = ("pending", "record")

    def __init__(self, record: Callable[[], None], consumers: int = 1) -> None:
        self.record = record
        self.pending = consumers
        """Consumers that have not finished."""


class SharedAck(Ack):
    """The report of one of a message's consumers."""

    __slots__ = ("_completion", "_has_left")

    def __init__(self, completion: Completion) -> None:
        super().__init__()
        self._completion = completion  # no reference back: a cycle would keep each message until garbage collection
        self._has_left = False

    def leave(self) -> None:
        """Note that neither this consumer nor a replacement has the message any more."""
        self.finished = True
        if not self._has_left:
            self._has_left = True
            self._completion.pending -= 1

    def replacement(self) -> SharedAck:
        """Return the ack of the consumer that takes the place of this one, which did not take the message."""
        return SharedAck(self._completion)

    def _record(self) -> None:
        if self._completion.pending == 1:
            self._completion.record()

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        if not isinstance(error, Requeue):
            self.leave()


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
            await self._deliver(mailbox, message, consumers, timeout, probe, lease)
        except Requeue as why:
            return await self.requeue_or_fail(mailbox, message, probe, why)
        except asyncio.CancelledError:
            await self.interrupt(mailbox, message)
            raise
        return True

    async def _deliver(
        self,
        mailbox: Mailbox,
        message: StoredMessage,
        consumers: Sequence[Consumer],
        timeout: float,
        probe: bool,
        lease: MemberLease | None,
    ) -> None:
        started = self.start(mailbox, message, probe)
        if started is None:
            await self.fail(mailbox, message, EXPIRED)
            return
        outcomes: Sequence[Failure | None]
        if len(consumers) > 1:
            consumers, outcomes = await self._call_all(mailbox, consumers, message, timeout, lease)
        else:
            ack = SharedAck(Completion(lambda: self.record_completion(mailbox, message)))
            outcomes = [await call(consumers[0], message, timeout, ack)]
            if lease is not None:
                lease.release_all()
        failure = self.judge(mailbox, message, consumers, outcomes, started, probe, pooled=lease is not None)
        if failure is not None:
            await self.fail(mailbox, message, failure)
            return
        try:
            if not message.ended:
                self.record_completion(mailbox, message)
        except OSError as error:
            self.complete(mailbox, message, error)
        else:
            self.complete(mailbox, message)

    def start(self, mailbox: Mailbox, message: StoredMessage, probe: bool) -> float | None:
        """Note that a message goes to its consumers; return the monotonic time, or None if it has expired."""
        envelope, clock = message.envelope, self._clock
        now = clock.now_ms()
        if now > envelope.budget.ttl:
            if probe:
                self._breakers.release(mailbox.hash)
            return None
        if envelope.reply_to is not None:
            self._replies.handed(mailbox.subject, envelope)
        started = clock.monotonic()
        delivery = message.delivery
        delivery.claimed_ms = _wall_time(delivery.stored_ms, message.stored_at, started, now)
        return started

    def judge(
        self,
        mailbox: Mailbox,
        message: StoredMessage,
        consumers: Sequence[Consumer],
        outcomes: Sequence[Failure | None],
        started: float,
        probe: bool,
        *,
        pooled: bool = False,
    ) -> Failure | None:
        """Record the outcomes of the consumers; return the failure if all have failed."""
        delivery = message.delivery
        delivery.handled_ms = (delivery.claimed_ms or 0.0) + (self._clock.monotonic() - started) * 1000
        failures = [outcome for outcome in outcomes if outcome is not None]
        # For a pool they name the member; for a replay they replace those of the failure.
        if failures or len(outcomes) > 1 or pooled or delivery.replays:
            delivery.outcomes = _outcomes(consumers, outcomes)
        if len(failures) == len(outcomes):
            self._breakers.record_failure(mailbox.hash, probe=probe)
            return failures[0]
        self._breakers.record_success(mailbox.hash, probe=probe)
        if failures:
            delivery.status = Status.PARTIAL
            delivery.code, delivery.reason = failures[0]
        else:
            delivery.status = Status.DONE
        return None

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
        completion = Completion(lambda: self.record_completion(mailbox, message), len(consumers))
        results = await asyncio.gather(
            *(
                self._call_member(mailbox, consumer, message, timeout, lease, SharedAck(completion))
                for consumer in consumers
            )
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
        ack: SharedAck,
    ) -> tuple[Consumer, Failure | Requeue | None]:
        """Run one of several consumers, or its replacement; return the one that ran, and its failure."""
        while True:
            try:
                outcome = await call(consumer, message, timeout, ack)
            except Requeue as error:
                other: Consumer | None = None
                if lease is not None and consumer.pool is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timeout):
                            other = await lease.replace(consumer, lambda: self._consumers(mailbox)[0])
                if other is None:
                    ack.leave()
                    return consumer, error
                consumer, ack = other, ack.replacement()
            else:
                if lease is not None:
                    lease.release(consumer)
                ack.leave()
                return consumer, outcome

    async def requeue_or_fail(self, mailbox: Mailbox, message: StoredMessage, probe: bool, why: Requeue) -> bool:
        """Requeue a message that no consumer took and return True; dead-letter it if the disk refuses."""
        if probe:
            self._breakers.release(mailbox.hash)
        if self.requeue(mailbox, message):
            return True
        await self.fail(mailbox, message, (Code.HANDLER_FAILED, f"{why}, and it could not be requeued"))
        return False

    def requeue(self, mailbox: Mailbox, message: StoredMessage) -> bool:
        """Requeue a message that no consumer has begun; return False if the disk refuses."""
        try:
            requeued = mailbox.requeue(message)
        except OSError as error:
            logger.error("%s: cannot requeue %s: %s", mailbox.subject, message.id, error)
            return False
        if requeued:
            self._commits.note_requeued(mailbox.hash, message.id)
            if message.fanout is not None:
                message.fanout.postponed(message)
        return requeued

    def record_completion(self, mailbox: Mailbox, message: StoredMessage) -> None:
        """Record that a message was handled.

        Raises:
            OSError: if that cannot be written; the message stays claimed.
        """
        self._commits.finish(mailbox.hash, mailbox.maildir, message.delivery.message_id)
        message.ended = True

    def complete(self, mailbox: Mailbox, message: StoredMessage, error: OSError | None = None) -> None:
        """End a handled message; with an error, which its record met, it stays claimed until the disk accepts it."""
        if error is None:
            mailbox.claimed.pop(message.delivery.message_id, None)
        else:
            self._dead_letter_writer.finish_later(mailbox, message, error)
        self._recorder.handled(message.delivery)
        if message.fanout is not None:
            message.fanout.succeeded(message)
        if self.on_settled is not None:
            self.on_settled(message, True)

    async def fail(self, mailbox: Mailbox, message: StoredMessage, failure: Failure) -> None:
        """Dead-letter a message that its consumers failed, or leave that to its fan-out."""
        code, reason = failure
        if message.delivery.kind == TargetKind.ADAPTER and code in (Code.HANDLER_FAILED, Code.TIMEOUT):
            code, reason = Code.ADAPTER_FAILED, f"adapter delivery failed: {reason}"
        if message.fanout is not None:
            message.fanout.failed(message, code, reason)
        else:
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, message, code=code, reason=reason)
        if self.on_settled is not None:
            self.on_settled(message, False)

    async def interrupt(self, mailbox: Mailbox, message: StoredMessage) -> None:
        """Dead-letter a message in flight: the bus closes, its grace period is over, and the consumer may have run."""
        if message.ended:
            self.complete(mailbox, message)
        elif message.id in mailbox.claimed:
            reason = "the bus was closed meanwhile"
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, message, code=Code.INTERRUPTED, reason=reason)


async def call(
    consumer: Consumer,
    message: StoredMessage,
    timeout: float,
    ack: Ack,
    *,
    work: Coroutine[Any, Any, None] | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Failure | None:
    """Run one consumer; return its failure, or None. `on_wait` is called if it does not return immediately.

    Raises:
        Requeue: if it did not take the message.
    """
    limit: asyncio.Timeout | None = None
    try:
        work = work or consumer.deliver(message, ack) or ack.wait()
        try:
            # A handler that never waits needs no timer, which would cost more than everything else here.
            first = work.send(None)
        except StopIteration:
            return None
        if on_wait is not None:
            on_wait()
        limit = asyncio.timeout(None if consumer.enforces_timeout else timeout)
        async with limit:
            await _resume(work, first)
    except TimeoutError as error:
        if ack.finished:
            return outcome(consumer, ack.error)  # it was reported just before the timeout
        if limit is not None and limit.expired():
            ack.abandon()
            return no_answer(consumer, timeout)
        return outcome(consumer, error)
    except Exception as error:
        return outcome(consumer, error)
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


def outcome(consumer: Consumer, error: Exception | None) -> Failure | None:
    """Return the failure that an error of a consumer stands for.

    Raises:
        Requeue: if it did not take the message.
    """
    if error is None:
        return None
    if isinstance(error, Requeue):
        raise error
    own_code = getattr(error, "dead_letter_code", None)  # then its text is meant for operators
    return own_code or Code.HANDLER_FAILED, f"{consumer.name}: {error if own_code else _describe(error)}"


def no_answer(consumer: Consumer, timeout: float) -> Failure:
    """Return the failure of a consumer that took too long."""
    return Code.TIMEOUT, f"{consumer.name}: no answer within {timeout:g} s"


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

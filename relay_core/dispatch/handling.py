"""Handling: what becomes of one message that has been claimed.

1. Its TTL is checked, all its consumers run side by side, each with its own timeout, and it is completed or parked.
2. All consumers failed → ``failed/``. Some failed → completed, status `partial`, every outcome kept.
3. The breaker learns exactly one outcome per delivery, after the consumers.
4. At most once: the message goes back to the head of the line only when every consumer says that it was not taken
   (`Requeue`): no outcome for the breaker then, and none for the message.
5. Where it has several consumers, some of them may have handled it by then. So it stays claimed, and a pool's member
   that did not take it is replaced by another of the pool, which is waited for no longer than a handler is: this
   delivery may hold what that one waits for. If there is nobody, that is a failure of this consumer, unless none of
   the others has taken it either.
6. That it was handled is written down before its last consumer answers for it (`End`). If the disk does not take that,
   the message stays with the consumer, or, where the consumer has returned, claimed until the disk does.
7. A pool's member makes room for its next message as soon as it is through, whatever the others do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from types import coroutine
from typing import Any

from relay_core.clock import Clock
from relay_core.dispatch.consumer import Consumer, End, Ending, Requeue
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
    """See claimed messages through."""

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
        """Told of every delivery that has ended, and whether it was handled."""

    async def deliver(
        self,
        mailbox: Mailbox,
        item: StoredMessage,
        consumers: Sequence[Consumer],
        timeout: float,
        probe: bool,
        lease: MemberLease | None = None,
    ) -> bool:
        """Take a claimed message to its end; return False if the disk does not let it back in line.

        `lease` holds the members of pools among the consumers.
        """
        self._commits.note_claimed(mailbox.hash, item.delivery.message_id)
        try:
            await self._handle(mailbox, item, consumers, timeout, probe, lease)
        except Requeue as error:
            if probe:
                self._breakers.release(mailbox.hash)
            return await self._put_back(mailbox, item, error)
        except asyncio.CancelledError:
            # The bus is closing and its grace is over: nobody knows how far the handler came.
            if item.ended:
                self._complete(mailbox, item)
            elif item.id in mailbox.claimed:
                reason = "the bus was closed meanwhile"
                await self._dead_letter_writer.dead_letter_or_retry(mailbox, item, code=Code.INTERRUPTED, reason=reason)
            raise
        return True

    async def _handle(
        self,
        mailbox: Mailbox,
        item: StoredMessage,
        consumers: Sequence[Consumer],
        timeout: float,
        probe: bool,
        lease: MemberLease | None,
    ) -> None:
        delivery, clock = item.delivery, self._clock
        now = clock.now_ms()
        if now > item.envelope.budget.ttl:
            if probe:
                self._breakers.release(mailbox.hash)
            await self._fail(mailbox, item, Code.EXPIRED, "message expired (TTL)")
            return
        if item.envelope.reply_to is not None:
            self._replies.handed(mailbox.subject, item.envelope)
        started = clock.monotonic()
        delivery.claimed_ms = claimed_ms = _continue(delivery.stored_ms, item.stored_at, started, now)
        outcomes: Sequence[Failure | None]
        if len(consumers) > 1:
            consumers, outcomes = await self._ask_all(mailbox, consumers, item, timeout, lease)
        else:
            end = End(Ending(lambda: self._write_end(mailbox, item)))
            outcomes = [await _call(consumers[0], item.envelope, timeout, end)]
            if lease is not None:
                lease.release()
        delivery.handled_ms = claimed_ms + (clock.monotonic() - started) * 1000
        failures = [outcome for outcome in outcomes if outcome is not None]
        if len(failures) == len(outcomes):
            self._breakers.record_failure(mailbox.hash, probe=probe)
            delivery.outcomes = _outcomes(consumers, outcomes)
            await self._fail(mailbox, item, *failures[0])
            return
        self._breakers.record_success(mailbox.hash, probe=probe)
        if failures:
            delivery.status = Status.PARTIAL
            delivery.code, delivery.reason = failures[0]
            delivery.outcomes = _outcomes(consumers, outcomes)
        else:
            delivery.status = Status.DONE
            # Of a pool it is worth saying who it was; a replay's take the place of the failed ones.
            if len(outcomes) > 1 or lease is not None or delivery.replays:
                delivery.outcomes = _outcomes(consumers, outcomes)
        self._complete(mailbox, item)

    async def _ask_all(
        self,
        mailbox: Mailbox,
        consumers: Sequence[Consumer],
        item: StoredMessage,
        timeout: float,
        lease: MemberLease | None,
    ) -> tuple[list[Consumer], list[Failure | None]]:
        """Run several consumers; return who they were in the end, and the failure of each.

        Raises:
            Requeue: if none has taken it.
        """
        ending = Ending(lambda: self._write_end(mailbox, item), len(consumers))
        asked = await asyncio.gather(*(self._ask(mailbox, one, item, timeout, lease, End(ending)) for one in consumers))
        failures: list[Failure | None] = []
        untaken: list[Requeue] = []
        for one, outcome in asked:
            if isinstance(outcome, Requeue):
                untaken.append(outcome)
                outcome = (Code.DISCONNECTED, f"{one.name}: {outcome}, and nobody else is there to take it")
            failures.append(outcome)
        if len(untaken) == len(asked):
            raise untaken[0]
        return [one for one, _ in asked], failures

    async def _ask(
        self, mailbox: Mailbox, one: Consumer, item: StoredMessage, timeout: float, lease: MemberLease | None, end: End
    ) -> tuple[Consumer, Failure | Requeue | None]:
        """Run one consumer of several, or whoever takes its place; return who it was and how it failed."""
        while True:
            try:
                outcome = await _call(one, item.envelope, timeout, end)
            except Requeue as error:
                other: Consumer | None = None
                if lease is not None and one.pool is not None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timeout):
                            other = await lease.replace(one, lambda: self._consumers(mailbox)[0])
                if other is None:
                    end.close()
                    return one, error
                one = other
            else:
                if lease is not None:
                    lease.give_back(one)
                end.close()
                return one, outcome

    async def _put_back(self, mailbox: Mailbox, item: StoredMessage, why: Requeue) -> bool:
        try:
            requeue = mailbox.requeue(item)
        except OSError as error:
            logger.error("%s: cannot put %s back: %s", mailbox.subject, item.id, error)
            requeue = False
        if requeue:
            self._commits.note_requeued(mailbox.hash, item.id)
            if item.fanout is not None:
                item.fanout.postponed(item)
        else:
            await self._fail(mailbox, item, Code.HANDLER_FAILED, f"{why}, and it could not be put back in line")
        return requeue

    def _complete(self, mailbox: Mailbox, item: StoredMessage) -> None:
        try:
            if not item.ended:
                self._write_end(mailbox, item)
            mailbox.claimed.pop(item.delivery.message_id, None)
        except OSError as error:
            self._dead_letter_writer.finish_later(mailbox, item, error)
        self._recorder.handled(item.delivery)
        if item.fanout is not None:
            item.fanout.succeeded(item)
        if self.on_settled is not None:
            self.on_settled(item, True)

    def _write_end(self, mailbox: Mailbox, item: StoredMessage) -> None:
        self._commits.finish(mailbox.hash, mailbox.maildir, item.delivery.message_id)
        item.ended = True

    async def _fail(self, mailbox: Mailbox, item: StoredMessage, code: str, reason: str) -> None:
        if item.delivery.kind == TargetKind.ADAPTER and code in (Code.HANDLER_FAILED, Code.TIMEOUT):
            code, reason = Code.ADAPTER_FAILED, f"adapter delivery failed: {reason}"
        if item.fanout is not None:
            item.fanout.failed(item, code, reason)
        else:
            await self._dead_letter_writer.dead_letter_or_retry(mailbox, item, code=code, reason=reason)
        if self.on_settled is not None:
            self.on_settled(item, False)


async def _call(consumer: Consumer, envelope: Envelope, timeout: float, end: End) -> Failure | None:
    """Run one consumer; return its failure, or None."""
    limit = asyncio.timeout(None if consumer.keeps_time else timeout)
    work = consumer.deliver(envelope, end)
    try:
        try:
            # A handler that never waits needs no timer, which would cost more than all the rest here.
            first = work.send(None)
        except StopIteration:
            return None
        async with limit:
            await _resume(work, first)
    except TimeoutError as error:
        if end.over:
            return None  # its word came at the same moment, and was taken
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
    """Go on with a coroutine that has been begun and waits for something."""
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


def _continue(stored_ms: float | None, stored_at: float, now: float, wall_ms: int) -> float:
    """Return the wall time of `now`, counted on from when the message was stored."""
    if stored_ms is None or not stored_at:
        return max(float(wall_ms), stored_ms or 0.0)
    return stored_ms + (now - stored_at) * 1000

"""A publish whose caller waits for adapters to answer, and the consequences of a failed answer.

1. A failure among targets that took the message is kept for replay (`partial`); if no target took it, every failure is
   a dead letter. That is known only when all have answered or are overdue, so a failed copy stays claimed until then.
2. A target that has not answered in time, or has requeued its copy, still has it queued: the message is stored, so it
   counts as taken (`queued`). If it fails after all, the same rule holds: a dead letter, unless another target took
   the message.
3. None of this depends on the caller, which may be long gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from relay_core.clock import Clock, Timer, call_later
from relay_core.dispatch.dead_lettering import DeadLetterWriter
from relay_core.messages.results import AdapterResult
from relay_core.pipeline.publication import Publication
from relay_core.pipeline.routing import Target
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import StoredMessage
from relay_core.tasks import Tasks

GRACE_SECS = 1.0
"""Longer than a target's own timeout, so that one that began at once has answered, if only by timing out."""


@dataclass(slots=True)
class _Failure:
    mailbox: Mailbox
    message: StoredMessage
    code: str
    reason: str


class Fanout:
    """Collect the answers to one publish."""

    def __init__(
        self, publication: Publication, dead_letter_writer: DeadLetterWriter, tasks: Tasks, clock: Clock
    ) -> None:
        self._publication = publication
        self._dead_letter_writer = dead_letter_writer
        self._tasks = tasks
        self._clock = clock
        self._expected: dict[str, Target] = {}
        self._failed: list[_Failure] = []
        self._overdue: dict[str, Mailbox] = {}
        self._longest = 0.0
        self._timer: Timer | None = None
        self._answered = asyncio.Event()

    def expect(self, target: Target) -> None:
        """Wait for a target's answer."""
        assert target.awaited is not None
        self._expected[target.mailbox.hash] = target
        if target.awaited > self._longest:
            self._longest = target.awaited
            if self._timer is not None:
                self._timer.cancel()
            self._timer = call_later(self._clock, target.awaited + GRACE_SECS, self._due)

    def succeeded(self, message: StoredMessage) -> None:
        """Count a target that took its copy."""
        if self._overdue.pop(message.delivery.target, None) is None:
            self._publication.delivered += 1
            self._answer(message, "delivered", None)

    def failed(self, message: StoredMessage, code: str, reason: str) -> None:
        """Take over a copy that its target failed, still claimed."""
        late = self._overdue.pop(message.delivery.target, None)
        if late is not None:
            self._publication.delivered -= 1
            self._dead_letter([_Failure(late, message, code, reason)])
            return
        self._failed.append(_Failure(self._expected[message.delivery.target].mailbox, message, code, reason))
        self._publication.note_failure(reason)
        self._answer(message, "failed", reason)

    def postponed(self, message: StoredMessage) -> None:
        """Count a target that has requeued its copy as a taker."""
        if (expected := self._expected.pop(message.delivery.target, None)) is not None:
            self._queued(expected)
            if not self._expected:
                self._settle()

    async def wait(self) -> None:
        """Return when all targets have answered and failed copies are dead-lettered, or when the time is over."""
        await self._answered.wait()

    def _answer(self, message: StoredMessage, status: str, error: str | None) -> None:
        delivery = message.delivery
        expected = self._expected.pop(delivery.target)
        duration = (delivery.handled_ms or delivery.sent_ms) - delivery.sent_ms
        self._note(expected, status, error, round(duration, 3))
        if not self._expected:
            self._settle()

    def _due(self) -> None:
        """Count targets that have not answered as takers."""
        for target in self._expected.values():
            self._queued(target)
        self._expected.clear()
        self._settle()

    def _queued(self, target: Target) -> None:
        self._overdue[target.mailbox.hash] = target.mailbox
        self._publication.delivered += 1
        self._note(target, "queued")

    def _note(self, target: Target, status: str, error: str | None = None, duration_ms: float | None = None) -> None:
        assert target.adapter is not None, "only adapters are awaited"
        self._publication.note_adapter(
            AdapterResult(adapter_id=target.adapter, status=status, error=error, duration_ms=duration_ms)
        )

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._failed:
            self._dead_letter(self._failed)
        else:
            self._answered.set()

    def _dead_letter(self, failures: Sequence[_Failure]) -> None:
        """Dead-letter failed copies; once the bus closes they stay in ``cur/`` for the next start."""
        work = self._dead_letter_all(failures, partial=self._publication.delivered > 0)
        if self._tasks.start(work, name=f"dead-letter {self._publication.id}") is None:
            self._answered.set()

    async def _dead_letter_all(self, failures: Sequence[_Failure], *, partial: bool) -> None:
        for failure in failures:
            await self._dead_letter_writer.dead_letter_or_retry(
                failure.mailbox, failure.message, code=failure.code, reason=failure.reason, partial=partial
            )
        self._answered.set()

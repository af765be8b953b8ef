"""A publish whose caller waits for adapters to answer, and what a failed answer then means.

One failure among targets that took the message is kept aside for replay (`partial`); if nothing
took it, every failure is a dead letter. That is known only when all have answered, so a failed
copy stays claimed until then. The decision does not depend on the caller, who may be long gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from relay_core.deadletters import Code
from relay_core.mailbox import Item, Mailbox
from relay_core.parking import Parking
from relay_core.publication import Publication, Target
from relay_core.results import AdapterResult
from relay_core.tasks import Tasks


@dataclass(slots=True)
class _Expected:
    mailbox: Mailbox
    adapter: str
    timeout: float


class Fanout:
    """Collect the answers to one publish."""

    def __init__(self, publication: Publication, parking: Parking, tasks: Tasks) -> None:
        self._publication = publication
        self._parking = parking
        self._tasks = tasks
        self._expected: dict[str, _Expected] = {}
        self._failed: list[tuple[Mailbox, Item, str, str]] = []
        self._answered = asyncio.Event()
        self._closed = False

    def expect(self, item: Item, target: Target) -> None:
        """Wait for a target's answer."""
        assert target.awaited is not None and target.adapter is not None
        self._expected[target.mailbox.hash] = _Expected(target.mailbox, target.adapter, target.awaited)

    def succeeded(self, item: Item) -> None:
        """Take note that a target took its copy."""
        self._publication.delivered += 1
        self._answer(item, "delivered", None)

    def failed(self, item: Item, code: str, reason: str) -> None:
        """Take a copy that its target failed, still claimed."""
        mailbox = self._expected[item.delivery.target].mailbox
        if code in (Code.HANDLER_FAILED, Code.TIMEOUT):
            code, reason = Code.ADAPTER_FAILED, f"adapter delivery failed: {reason}"
        self._failed.append((mailbox, item, code, reason))
        if self._publication.failures is None:
            self._publication.failures = []
        self._publication.failures.append(reason)
        self._answer(item, "failed", reason)

    async def wait(self) -> None:
        """Return when all have answered, or when the longest timeout is over."""
        timeout = max(expected.timeout for expected in self._expected.values()) if self._expected else 0
        try:
            async with asyncio.timeout(timeout):
                await self._answered.wait()
        except TimeoutError:
            # Still in line behind other mail, or behind an open breaker: stored, and so taken.
            for expected in self._expected.values():
                self._publication.delivered += 1
                self._note(AdapterResult(adapter_id=expected.adapter, status="queued"))

    def _answer(self, item: Item, status: str, error: str | None) -> None:
        delivery = item.delivery
        expected = self._expected.pop(delivery.target)
        duration = (delivery.handled_ms or delivery.sent_ms) - delivery.sent_ms
        self._note(
            AdapterResult(adapter_id=expected.adapter, status=status, error=error, duration_ms=round(duration, 3))
        )
        if self._expected:
            return
        if self._failed:
            self._tasks.start(self._park(), name=f"park {delivery.message_id}")
        else:
            self._answered.set()

    def _note(self, result: AdapterResult) -> None:
        if self._publication.adapter_results is None:
            self._publication.adapter_results = []
        self._publication.adapter_results.append(result)

    async def _park(self) -> None:
        partial = self._publication.delivered > 0
        for mailbox, item, code, reason in self._failed:
            await self._parking.park(mailbox, item, code=code, reason=reason, partial=partial)
        self._answered.set()

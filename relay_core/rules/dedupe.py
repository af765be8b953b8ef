"""Deduplication: a publish that is retried with the same dedupe id happens once.

1. The outcome of a publish that stored anything is remembered; a retry returns it instead of publishing again. A
   refusal stores nothing, so a retry after it publishes.
2. A retry during the first publish waits for it. If the first fails, the retry publishes.
3. The newest `limit` outcomes are remembered, also across a restart: from the index, and from the journal for those
   that a kill kept out of the index. Ids are per sender.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from relay_core.messages.results import PublishResult

Outcome: TypeAlias = tuple[PublishResult, bool]
"""The result of a publish, and whether it stored anything."""


def dedupe_key(sender: str, dedupe_id: str) -> str:
    """Return the key of one sender's dedupe id."""
    return f"{sender} {dedupe_id}"


class Dedupe:
    """Remember outcomes by dedupe id."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outcomes: OrderedDict[str, PublishResult] = OrderedDict()
        self._in_progress: dict[str, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def __contains__(self, key: str) -> bool:
        return key in self._outcomes

    def remember(self, key: str, result: PublishResult) -> None:
        """Remember an outcome, forgetting the oldest beyond the limit."""
        self._outcomes[key] = result
        while len(self._outcomes) > self._limit:
            self._outcomes.popitem(last=False)

    def once(
        self, key: str, begin: Callable[[], Outcome | Coroutine[Any, Any, Outcome]]
    ) -> PublishResult | Coroutine[Any, Any, PublishResult]:
        """Return the remembered outcome, or publish and remember the outcome if anything was stored."""
        if key in self._in_progress:
            return self._after(key, begin)
        if (known := self._outcomes.get(key)) is not None:
            return known
        outcome = begin()
        if isinstance(outcome, tuple):
            return self._ended(key, outcome)
        # Marked now, not when the caller awaits the rest.
        done = self._in_progress[key] = asyncio.get_running_loop().create_future()
        return self._finish(key, outcome, done)

    async def _after(self, key: str, begin: Callable[[], Outcome | Coroutine[Any, Any, Outcome]]) -> PublishResult:
        while (in_progress := self._in_progress.get(key)) is not None:
            await asyncio.shield(in_progress)
        outcome = self.once(key, begin)
        return outcome if isinstance(outcome, PublishResult) else await outcome

    async def _finish(
        self, key: str, outcome: Coroutine[Any, Any, Outcome], done: asyncio.Future[None]
    ) -> PublishResult:
        try:
            return self._ended(key, await outcome)
        finally:
            del self._in_progress[key]
            done.set_result(None)

    def _ended(self, key: str, outcome: Outcome) -> PublishResult:
        result, was_stored = outcome
        if was_stored:
            self.remember(key, result)
        return result

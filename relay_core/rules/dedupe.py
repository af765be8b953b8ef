"""Dedupe: a publish that is retried with the same dedupe id happens once.

1. The outcome of a publish that left anything on disk is remembered; a retry gets it instead of
   publishing again. A refusal leaves nothing, so a retry after one is a new try.
2. A retry while the first is still under way waits for it. If the first fails, the retry tries.
3. Remembered are the newest `limit` outcomes, also across a restart: from the index, and from the
   journal for those a kill overtook. Ids are per sender.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from relay_core.messages.results import PublishResult

Outcome: TypeAlias = tuple[PublishResult, bool]
"""What a publish came to, and whether it left anything on disk."""


def dedupe_key(sender: str, dedupe_id: str) -> str:
    """Return the key of one sender's dedupe id."""
    return f"{sender} {dedupe_id}"


class Dedupe:
    """Remember outcomes by dedupe id."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outcomes: OrderedDict[str, PublishResult] = OrderedDict()
        self._under_way: dict[str, asyncio.Future[None]] = {}

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
        """Return the remembered outcome, or publish; it is remembered if it left anything on disk."""
        if key in self._under_way:
            return self._after(key, begin)
        if (known := self._outcomes.get(key)) is not None:
            return known
        outcome = begin()
        if isinstance(outcome, tuple):
            return self._ended(key, outcome)
        # Marked at once, not when somebody gets round to awaiting the rest.
        done = self._under_way[key] = asyncio.get_running_loop().create_future()
        return self._finish(key, outcome, done)

    async def _after(self, key: str, begin: Callable[[], Outcome | Coroutine[Any, Any, Outcome]]) -> PublishResult:
        while (under_way := self._under_way.get(key)) is not None:
            await asyncio.shield(under_way)
        outcome = self.once(key, begin)
        return outcome if isinstance(outcome, PublishResult) else await outcome

    async def _finish(
        self, key: str, outcome: Coroutine[Any, Any, Outcome], done: asyncio.Future[None]
    ) -> PublishResult:
        try:
            return self._ended(key, await outcome)
        finally:
            del self._under_way[key]
            done.set_result(None)

    def _ended(self, key: str, outcome: Outcome) -> PublishResult:
        result, is_durable = outcome
        if is_durable:
            self.remember(key, result)
        return result

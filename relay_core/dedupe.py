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
from collections.abc import Awaitable, Callable

from relay_core.results import PublishResult


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

    async def once(self, key: str, publish: Callable[[], Awaitable[tuple[PublishResult, bool]]]) -> PublishResult:
        """Return the remembered outcome, or publish; it is remembered if it left anything on disk."""
        while (under_way := self._under_way.get(key)) is not None:
            await asyncio.shield(under_way)
        if (known := self._outcomes.get(key)) is not None:
            return known
        done = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            result, lasting = await publish()
            if lasting:
                self.remember(key, result)
            return result
        finally:
            del self._under_way[key]
            done.set_result(None)

"""Dedupe: the outcomes of publishes by their dedupe id, so that a retry returns the first outcome.

The newest `limit` outcomes are remembered, also across a restart: from the index, and from the journal for those a kill
overtook. Ids are per sender. pipeline/publisher.py decides what is remembered.
"""

from __future__ import annotations

from collections import OrderedDict

from relay_core.messages.results import PublishResult


def dedupe_key(sender: str, dedupe_id: str) -> str:
    """Return the key of one sender's dedupe id."""
    return f"{sender} {dedupe_id}"


class Dedupe:
    """Remember outcomes by dedupe id."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outcomes: OrderedDict[str, PublishResult] = OrderedDict()

    def __len__(self) -> int:
        return len(self._outcomes)

    def __contains__(self, key: str) -> bool:
        return key in self._outcomes

    def get(self, key: str) -> PublishResult | None:
        """Return the outcome of an earlier publish."""
        return self._outcomes.get(key)

    def remember(self, key: str, result: PublishResult) -> None:
        """Remember an outcome, forgetting the oldest beyond the limit."""
        self._outcomes[key] = result
        while len(self._outcomes) > self._limit:
            self._outcomes.popitem(last=False)

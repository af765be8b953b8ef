"""Publish: make a publication of a request and take it through the stages, once per dedupe id.

Every publish by a caller begins here, from the library, an adapter or the socket. `begin` is the synchronous fast path:
it runs the stages until one of them has to wait. Storing with durability ``os`` never waits, so such a publish costs
neither a task nor a future; with ``fsync`` it waits for the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.results import PublishResult
from relay_core.pipeline.publication import Publication
from relay_core.rules.dedupe import Dedupe, Outcome, dedupe_key

Stage: TypeAlias = Callable[[Publication], Awaitable[None] | None]
BegunPublish: TypeAlias = PublishResult | Coroutine[Any, Any, PublishResult]
"""The result, or, if something has to be waited for, the remaining work, which must be awaited."""


class Pipelines(NamedTuple):
    """The stages of each kind of publish, in order; `stages` explains them."""

    publish: Sequence[Stage]
    """A caller's publish."""
    notice: Sequence[Stage]
    """A failure notice of the bus: neither rate limit nor budget gate, or it would not arrive."""
    replay: Sequence[Stage]
    """A dead letter that is published again, or an edited copy of one: it was validated and counted before."""


class Publisher:
    """Publish messages."""

    def __init__(self, stages: Sequence[Stage], dedupe: Dedupe) -> None:
        self._stages = stages
        self._dedupe = dedupe

    def begin(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
        origin: str | None = None,
        reader: str | None = None,
        waits: bool = True,
    ) -> BegunPublish:
        """Publish a message as far as nothing has to be waited for; see `RelayCore.publish`.

        `origin` is the adapter that must not get it back, `reader` the client or adapter that publishes it. With
        `waits` it waits for the answers of targets that give one; otherwise a stored copy is enough.
        """
        publication = Publication(
            subject,
            payload,
            sender,
            reply_to=reply_to,
            overrides=budget,
            parent_id=parent_id,
            dedupe=dedupe_key(sender, dedupe_id) if dedupe_id is not None else None,
            origin=origin,
            reader=reader,
            waits=waits,
        )
        if publication.dedupe is None:
            return begin_pipeline(self._stages, publication)
        return self._dedupe.once(publication.dedupe, partial(self._begin_once, publication))

    def _begin_once(self, publication: Publication) -> Outcome | Coroutine[Any, Any, Outcome]:
        begun = begin_pipeline(self._stages, publication)
        if isinstance(begun, PublishResult):
            return begun, publication.is_durable
        return _finish_once(begun, publication)


async def _finish_once(begun: Coroutine[Any, Any, PublishResult], publication: Publication) -> Outcome:
    return await begun, publication.is_durable


async def finish(begun: BegunPublish) -> PublishResult:
    """Return the result of a publish that was begun."""
    return begun if isinstance(begun, PublishResult) else await begun


def begin_pipeline(stages: Sequence[Stage], publication: Publication) -> BegunPublish:
    """Take a publication through the stages until one of them has to wait."""
    for position, stage in enumerate(stages, 1):
        pending = stage(publication)
        if pending is not None:
            return _continue(pending, stages[position:], publication)
        if publication.result is not None:
            return publication.result
    raise AssertionError("the last stage settles")


async def _continue(pending: Awaitable[None], rest: Sequence[Stage], publication: Publication) -> PublishResult:
    await pending
    return publication.result or await finish(begin_pipeline(rest, publication))

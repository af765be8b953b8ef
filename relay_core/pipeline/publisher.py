"""Publish: make a publication of a request and take it through the stages, once per dedupe id.

Every publish by a caller begins here, from the library, an adapter or the socket. `begin` is the synchronous fast path:
it runs the stages until one of them has to wait. With durability ``os`` storing never waits; with ``fsync`` the publish
continues when its record is durable. Neither costs a task: only a stage that awaits something else gets one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from relay_core.errors import Closed
from relay_core.messages.envelope import BudgetOverrides
from relay_core.messages.results import PublishResult
from relay_core.pipeline.deliver import Store
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.pipeline.publication import Publication
from relay_core.rules.dedupe import Dedupe, dedupe_key
from relay_core.tasks import Tasks

Stage: TypeAlias = Callable[[Publication], Awaitable[None] | Store | None]
BegunPublish: TypeAlias = PublishResult | PendingPublish


class Pipeline:
    """The stages of one kind of publish, in order; `stages` explains them."""

    def __init__(self, stages: Sequence[Stage], tasks: Tasks) -> None:
        self.stages = stages
        self._tasks = tasks

    def begin(self, publication: Publication, position: int = 0) -> BegunPublish:
        """Take a publication through the stages from a position on, until one of them has to wait."""
        for next, stage in enumerate(self.stages[position:] if position else self.stages, position + 1):
            waiting = stage(publication)
            if waiting is not None:
                pending = PendingPublish()
                if isinstance(waiting, Store):
                    waiting.on_done = partial(self._stored, waiting, publication, next, pending)
                else:
                    self._await(waiting, publication, next, pending)
                return pending
            if publication.result is not None:
                return publication.result
        raise AssertionError("the last stage settles")

    async def run(self, publication: Publication) -> PublishResult:
        """Take a publication through all stages."""
        begun = self.begin(publication)
        return begun if isinstance(begun, PublishResult) else await begun

    def _stored(self, store: Store, publication: Publication, position: int, pending: PendingPublish) -> None:
        try:
            store.raise_error()
            if store.fanout is not None:
                self._await(store.fanout.wait(), publication, position, pending)
                return
            begun = publication.result or self.begin(publication, position)
        except Exception as error:
            pending.fail(error)
        else:
            pending.follow(begun)

    def _await(
        self, waiting: Awaitable[None], publication: Publication, position: int, pending: PendingPublish
    ) -> None:
        work = self._continue(waiting, publication, position, pending)
        if self._tasks.start(work, name=f"publish {publication.subject}") is None:
            if isinstance(waiting, Coroutine):
                waiting.close()
            pending.fail(Closed("the bus is closed"))

    async def _continue(
        self, waiting: Awaitable[None], publication: Publication, position: int, pending: PendingPublish
    ) -> None:
        try:
            await waiting
            begun = publication.result or self.begin(publication, position)
        except Exception as error:
            pending.fail(error)
        except BaseException:
            pending.fail(Closed("the bus was closed meanwhile"))
            raise
        else:
            pending.follow(begun)


class Pipelines(NamedTuple):
    """The three kinds of publish."""

    publish: Pipeline
    """A caller's publish."""
    notice: Pipeline
    """A failure notice of the bus: neither rate limit nor budget gate, or it would not arrive."""
    replay: Pipeline
    """A dead letter that is published again, or an edited copy of one: it was validated and counted before."""


class Publisher:
    """Publish messages."""

    def __init__(self, pipeline: Pipeline, dedupe: Dedupe) -> None:
        self._pipeline = pipeline
        self._dedupe = dedupe
        self._under_way: dict[str, PendingPublish] = {}
        """By dedupe key."""

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
            return self._pipeline.begin(publication)
        return self._begin_once(publication, publication.dedupe)

    async def publish(self, subject: str, payload: Any, **options: Any) -> PublishResult:
        """Publish a message; see `begin`."""
        begun = self.begin(subject, payload, **options)
        return begun if isinstance(begun, PublishResult) else await begun

    def _begin_once(self, publication: Publication, key: str) -> BegunPublish:
        """Return the outcome of an earlier publish with the same key, or publish.

        A retry while the first is under way waits for it, and publishes if that one failed.
        """
        if (first := self._under_way.get(key)) is not None:
            pending = PendingPublish()
            first.when_done(lambda _: self._retry(publication, key, pending))
            return pending
        if (known := self._dedupe.get(key)) is not None:
            return known
        begun = self._pipeline.begin(publication)
        if isinstance(begun, PublishResult):
            self._remember(publication, key, begun)
        else:
            self._under_way[key] = begun
            begun.when_done(partial(self._ended, publication, key))
        return begun

    def _retry(self, publication: Publication, key: str, pending: PendingPublish) -> None:
        try:
            pending.follow(self._begin_once(publication, key))
        except Exception as error:
            pending.fail(error)

    def _ended(self, publication: Publication, key: str, ended: PendingPublish) -> None:
        del self._under_way[key]
        if ended.error is None:
            self._remember(publication, key, ended.result())

    def _remember(self, publication: Publication, key: str, result: PublishResult) -> None:
        """Remember an outcome that left anything on disk; a retry after a refusal is a new try."""
        if publication.is_durable:
            self._dedupe.remember(key, result)

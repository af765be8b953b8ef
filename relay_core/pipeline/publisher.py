"""Publish: take a publication through the stages, once per dedupe id.

Every publish by a caller begins here, from the library, an adapter or the socket. `begin` is the synchronous fast path:
it runs the stages until one of them has to wait. With durability ``os`` storing never waits; with ``fsync`` the publish
continues when its record is durable. Neither costs a task: only a stage that awaits something else gets one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from relay_core.errors import Closed
from relay_core.messages.results import PublishResult
from relay_core.pipeline.deliver import Store
from relay_core.pipeline.pending_publish import PendingPublish
from relay_core.pipeline.publication import Publication
from relay_core.rules.dedupe import Dedupe
from relay_core.tasks import Tasks

Stage: TypeAlias = Callable[[Publication], Awaitable[None] | Store | None]
BegunPublish: TypeAlias = PublishResult | PendingPublish


class Pipeline:
    """The stages of one kind of publish, in order; `stages` explains them."""

    def __init__(self, stages: Sequence[Stage], tasks: Tasks) -> None:
        self.stages = stages
        self._tasks = tasks

    def begin(self, publication: Publication, position: int = 0) -> BegunPublish:
        """Take a publication through the stages from a position on; return it if one of them has to wait."""
        for next, stage in enumerate(self.stages[position:] if position else self.stages, position + 1):
            waiting = stage(publication)
            if waiting is not None:
                if isinstance(waiting, Store):
                    waiting.on_done = partial(self._stored, waiting, publication, next)
                else:
                    self._await(waiting, publication, next)
                return publication
            if publication.result is not None:
                return publication.result
        raise AssertionError("the last stage settles")

    async def run(self, publication: Publication) -> PublishResult:
        """Take a publication through all stages."""
        begun = self.begin(publication)
        return begun if isinstance(begun, PublishResult) else await begun

    def _stored(self, store: Store, publication: Publication, position: int) -> None:
        try:
            store.raise_error()
            if store.fanout is not None:
                self._await(store.fanout.wait(), publication, position)
                return
            self._resume(publication, position)
        except Exception as error:
            publication.fail(error)

    def _resume(self, publication: Publication, position: int) -> None:
        """Take a publication that has waited through the remaining stages, and end it unless it waits again."""
        begun = publication.result or self.begin(publication, position)
        if isinstance(begun, PublishResult):
            publication.succeed(begun)

    def _await(self, waiting: Awaitable[None], publication: Publication, position: int) -> None:
        work = self._continue(waiting, publication, position)
        if self._tasks.start(work, name=f"publish {publication.subject}") is None:
            if isinstance(waiting, Coroutine):
                waiting.close()
            publication.fail(Closed("the bus is closed"))

    async def _continue(self, waiting: Awaitable[None], publication: Publication, position: int) -> None:
        try:
            await waiting
            self._resume(publication, position)
        except Exception as error:
            publication.fail(error)
        except BaseException:
            publication.fail(Closed("the bus was closed meanwhile"))
            raise


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

    def begin(self, publication: Publication) -> BegunPublish:
        """Publish as far as nothing has to be waited for: return the result, or the publication that waits.

        With a dedupe key, return the outcome of an earlier publish with the same key. A retry while the first is under
        way waits for it, and publishes if that one failed.
        """
        key = publication.dedupe
        if key is None:
            return self._pipeline.begin(publication)
        if (first := self._under_way.get(key)) is not None:
            first.when_done(lambda _: self._retry(publication))
            return publication
        if (known := self._dedupe.get(key)) is not None:
            return known
        begun = self._pipeline.begin(publication)
        if isinstance(begun, PublishResult):
            self._remember(publication, begun)
        else:
            self._under_way[key] = begun
            begun.when_done(self._ended)
        return begun

    async def publish(self, subject: str, payload: Any, sender: str, **options: Any) -> PublishResult:
        """Publish a message; the options are those of `Publication`."""
        begun = self.begin(Publication(subject, payload, sender, **options))
        return begun if isinstance(begun, PublishResult) else await begun

    def _retry(self, publication: Publication) -> None:
        try:
            begun = self.begin(publication)
        except Exception as error:
            publication.fail(error)
        else:
            if isinstance(begun, PublishResult):
                publication.succeed(begun)

    def _ended(self, ended: PendingPublish) -> None:
        assert isinstance(ended, Publication)
        assert ended.dedupe is not None
        del self._under_way[ended.dedupe]
        if ended.result is not None:
            self._remember(ended, ended.result)

    def _remember(self, publication: Publication, result: PublishResult) -> None:
        """Remember an outcome that left anything on disk; a retry after a refusal is a new try."""
        if publication.dedupe is not None and publication.is_durable:
            self._dedupe.remember(publication.dedupe, result)

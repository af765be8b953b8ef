"""A publish that may have to wait, for its record to be durable or for anything else that takes time.

It proceeds independently of its caller, which may await it, register a callback, do both, or leave. So the supervisor
answers a connection's publishes as they are stored, without a task for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from relay_core.messages.results import PublishResult


class PendingPublish:
    """The future outcome of a publish: its result, or the error that `RelayCore.publish` raises."""

    # Most publishes keep these defaults until they end, so the defaults belong to the class.
    result: PublishResult | None = None
    """Set when the outcome is settled."""
    error: Exception | None = None
    """Set if it has failed."""
    _callbacks: list[Callable[[PendingPublish], None]] | None = None

    def get(self) -> PublishResult:
        """Return the result of a publish that has ended, or raise its error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None, "it has not ended"
        return self.result

    def when_done(self, callback: Callable[[PendingPublish], None]) -> None:
        """Call `callback` when it has ended; immediately if it has. It must not raise."""
        if self.result is not None or self.error is not None:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def succeed(self, result: PublishResult) -> None:
        """End it with a result."""
        self.result = result
        self._end()

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self.error = error
        self._end()

    def __await__(self) -> Generator[Any, None, PublishResult]:
        if self.result is None and self.error is None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_done(lambda _: None if done.done() else done.set_result(None))
            yield from done
        return self.get()

    def _end(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback(self)

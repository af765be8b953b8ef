"""A publish that waits, for its record to be durable or for anything else that takes time.

It goes on by itself: whoever began it may await it, register a callback, do both, or leave. So the supervisor answers a
connection's publishes as they are stored, without a task for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from relay_core.messages.results import PublishResult


class PendingPublish:
    """The future outcome of a publish: its result, or the error that `RelayCore.publish` raises."""

    __slots__ = ("_callbacks", "_error", "_result")

    def __init__(self) -> None:
        self._result: PublishResult | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[PendingPublish], None]] = []

    @property
    def error(self) -> Exception | None:
        """Return the error, if it has failed."""
        return self._error

    def result(self) -> PublishResult:
        """Return the result of a publish that has ended, or raise its error."""
        if self._error is not None:
            raise self._error
        assert self._result is not None, "it has not ended"
        return self._result

    def when_done(self, callback: Callable[[PendingPublish], None]) -> None:
        """Call `callback` when it has ended; immediately if it has. It must not raise."""
        if self._result is None and self._error is None:
            self._callbacks.append(callback)
        else:
            callback(self)

    def succeed(self, result: PublishResult) -> None:
        """End it with a result."""
        self._result = result
        self._end()

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        self._error = error
        self._end()

    def follow(self, other: PublishResult | PendingPublish) -> None:
        """End it as another publish ends."""
        if isinstance(other, PublishResult):
            self.succeed(other)
        else:
            other.when_done(lambda ended: self.fail(ended._error) if ended._error else self.succeed(ended.result()))

    def __await__(self) -> Generator[Any, None, PublishResult]:
        if self._result is None and self._error is None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(lambda _: None if done.done() else done.set_result(None))
            yield from done
        return self.result()

    def _end(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

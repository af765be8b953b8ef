"""Subscriptions: live handlers for the messages of a subject or a pattern.

A subscription ends with `close`, with its process, or with its `async with` block, and is never restored. A coroutine
function runs on the event loop; any other callable runs in a thread, so a handler that blocks delays only its own
mailbox, and no publish.

Subscriptions with the same queue name are a pool (worker_pool.py): they share the messages.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, cast

from relay_core.dispatch.consumer import Ack
from relay_core.dispatch.slots import Slots
from relay_core.dispatch.worker_pool import Pool, Pools
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import is_reply, validate_subject
from relay_core.messages.trie import SubjectTrie
from relay_core.storage.stored_message import StoredMessage

Handler = Callable[..., Awaitable[Any] | Any]

_HANDLER_THREADS = 64


class Subscription:
    """A handler and its pattern."""

    def __init__(
        self,
        id: str,
        pattern: str,
        created_at: str,
        handler: Handler,
        owner: Subscriptions,
        max_in_flight: int | None,
        pool: Pool | None,
    ) -> None:
        self.id = id
        self.pattern = pattern
        self.created_at = created_at
        self.name = getattr(handler, "__qualname__", type(handler).__name__)
        self.pool = pool
        self.slots = Slots(max_in_flight) if max_in_flight is not None and pool is None else None
        """Limits the in-flight messages over all mailboxes; without it, each mailbox may have one."""
        self.enforces_timeout = bool(getattr(handler, "enforces_timeout", False))
        """Whether the handler ends deliveries that take too long by itself."""
        self.hands_over = bool(getattr(handler, "hands_over", False))
        """Whether the handler is a `deliver` of its own: it takes the stored message and an `Ack`."""
        self._handler = handler
        self._owner = owner
        self.on_change: Callable[[Subscription], None] | None = None
        """Called when the subscription has ended."""
        self._on_loop = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )

    @property
    def queue(self) -> str | None:
        """Return the name of its queue, if it has one."""
        return self.pool.name if self.pool is not None else None

    def deliver(self, message: StoredMessage, ack: Ack) -> Coroutine[Any, Any, None] | None:
        """Run the handler on a message, or let it hand the message over."""
        if self.hands_over:
            return cast(Coroutine[Any, Any, None] | None, self._handler(message, ack))
        return self._run(message.envelope)

    async def _run(self, envelope: Envelope) -> None:
        try:
            if self._on_loop:
                await self._handler(envelope)
                return
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._owner.threads(), self._call, envelope)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not a cancellation of this task: passed on, it would end the dispatcher and strand the mailbox.
            raise RuntimeError("a task that the handler awaited was cancelled") from error
        except SystemExit as error:
            raise RuntimeError(f"the handler called sys.exit({error.code!r})") from error

    def _call(self, envelope: Envelope) -> Any:
        try:
            return self._handler(envelope)
        except StopIteration as error:
            raise RuntimeError("the handler raised StopIteration") from error  # a future cannot carry it

    async def close(self) -> None:
        """Receive no further messages; one in flight is still finished."""
        self.end()

    def end(self) -> None:
        """Do what `close` does, synchronously."""
        self.detach()
        self.announce()

    def detach(self) -> None:
        """Receive no further messages; `announce` must follow."""
        self._owner.remove(self)

    def announce(self) -> None:
        """Let the mailboxes that it consumed look up their consumers again."""
        if self.on_change is not None:
            self.on_change(self)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Subscriptions:
    """All live subscriptions, by subject."""

    def __init__(self) -> None:
        self._trie: SubjectTrie[Subscription] = SubjectTrie()
        self.pools = Pools()
        self._threads: ThreadPoolExecutor | None = None
        self.version = 0
        """Changes whenever a subscription is added or removed."""

    def __len__(self) -> int:
        return len(self._trie)

    def add(
        self,
        id: str,
        pattern: str,
        created_at: str,
        handler: Handler,
        max_in_flight: int | None = None,
        queue: str | None = None,
    ) -> Subscription:
        """Start a subscription.

        Raises:
            InvalidSubject: if the pattern or the queue's name breaks the naming rules.
            ValueError: if `max_in_flight` is less than 1.
            TypeError: if the handler is not callable.
        """
        validate_subject(pattern, allow_wildcards=True)
        if not callable(handler):
            raise TypeError(f"a handler must be callable, not {type(handler).__name__}")
        if max_in_flight is not None and max_in_flight < 1:
            raise ValueError(f"max_in_flight must be 1 or more, not {max_in_flight}")
        pool = self.pools.get(queue) if queue is not None else None
        subscription = Subscription(id, pattern, created_at, handler, self, max_in_flight, pool)
        self._trie.add(pattern, subscription)
        self.version += 1
        if pool is not None:
            pool.join(subscription, max_in_flight or 1)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, unless it was removed already."""
        if self._trie.remove(subscription.pattern, subscription):
            self.version += 1
            if subscription.pool is not None:
                self.pools.leave(subscription.pool, subscription)

    def match(self, subject: str) -> list[Subscription]:
        """Return the subscriptions that match a subject; for a reply mailbox, only those to its exact subject."""
        found = self._trie.match(subject)
        if is_reply(subject):
            return [subscription for subscription in found if subscription.pattern == subject]
        return found

    def listeners(self, subject: str) -> int:
        """Return how many listeners get each message of a subject; a pool counts as one."""
        found = self.match(subject)
        if not self.pools:
            return len(found)
        return len({subscription if subscription.pool is None else subscription.pool for subscription in found})

    def all(self) -> list[Subscription]:
        """Return every subscription, oldest first."""
        return sorted(self._trie, key=lambda subscription: subscription.id)

    def threads(self) -> ThreadPoolExecutor:
        """Return the thread pool for handlers that may block."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_HANDLER_THREADS, thread_name_prefix="relay-handler")
        return self._threads

    def close(self) -> None:
        """Shut down the thread pool without waiting for handlers that hang."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

"""The interface of adapters, which bridge the bus to other platforms.

An adapter delivers the messages of its patterns to a platform (`deliver`) and publishes messages from there
(`AdapterContext.publish`). Its `id` is one subject token: its mailbox is ``relay.adapter.{id}``, its private directory
``adapters/{id}``. The bus guarantees:

1. `start` comes first and `stop` last; a stopped adapter may be started again. `stop` is also called after a failed
   `start`, and may come during a delivery.
2. An adapter gets one message at a time (per lane), in order, each at most once, and only while its status is
   ``connected``. In any other state its messages wait on disk. `AdapterContext.status_changed` announces a new status;
   without it the next publish or probe notices.
3. An exception, a result with ``ok=False`` and a timeout are failures: the message is dead-lettered, the breaker
   counts, and only an operator's replay tries again. If the platform names a time to retry
   (`DeliveryResult.retry_after`), the message is retried until it expires.
4. An adapter does not receive messages that it published itself, except with `echo`.
5. Secrets of its configuration are redacted from its statuses, results and errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from relay_core.adapters.shared_resource import Shared
from relay_core.clock import Clock
from relay_core.errors import AccessDenied, Closed, RelayError
from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import BudgetOverrides, Envelope
from relay_core.messages.operator_views import STATE_NAMES, StateName
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalHandler, SignalSubscription
from relay_core.messages.subjects import SYSTEM_PREFIX
from relay_core.pipeline.publisher import Publisher
from relay_core.rules.replies import adapter_reader

DEFAULT_TIMEOUT_SECS = 30.0
DRAIN_TIMEOUT_SECS = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """An adapter's status."""

    state: StateName
    detail: str | None = None
    """The reason, for operators."""
    since: int | None = None
    """Wall time in milliseconds; by default, when the bus noticed."""

    def __post_init__(self) -> None:
        if self.state not in STATE_NAMES:
            raise ValueError(f"no adapter state {self.state!r}: it is one of {', '.join(STATE_NAMES)}")


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of a delivery."""

    ok: bool
    error: str | None = None
    """The reason of a failure, in one sentence."""
    code: str | None = None
    """The platform's error code."""
    detail: str | None = None
    """For the trace of a success, such as the platform's message id."""
    retry_after: float | None = None
    """With ``ok=False``: the platform refused the message and asks for a retry after this many seconds. Until then it
    waits at the head of its lane, as if it had not been attempted."""


class Adapter(Protocol):
    """A bridge to another platform.

    Optional attributes, read when it is added. The operator may set other values of ``priority``, ``rate`` and
    ``drain`` in adapters.json:

    - ``detached: bool = False``: a publish does not wait for its answer and counts it once stored.
    - ``priority: int = 0``: if several adapters match, the highest priority goes first.
    - ``senders: Sequence[str] = ()``: patterns of senders reserved for it while it runs, in addition to its own subject
      ``relay.adapter.{id}``.
    - ``rate: float | None = None``: messages per second; further messages wait, none is refused.
    - ``timeout: float = 30``: seconds per delivery, without the time in the queue.
    - ``def lane(self, subject: str) -> str | None``: one subject token; lanes are delivered concurrently, each with its
      own mailbox (``relay.adapter.{id}.{lane}``), order and breaker. None is the main lane.
    - ``max_in_flight: int | None = None``: how many lanes may have a message in flight at a time.
    - ``drain: float = 10``: seconds to finish messages in flight when a reload replaces it; at most 10 when it is
      removed or the bus closes.
    - ``bound: bool = False``: its subjects are people: writing to one needs a binding (`relay_core.rules.bindings`).
    - ``async def health(self) -> bool``: whether the platform can be reached now.
    """

    @property
    def id(self) -> str:
        """Return the id, one subject token."""
        ...

    @property
    def patterns(self) -> Sequence[str]:
        """Return the patterns of the subjects that it delivers."""
        ...

    @property
    def status(self) -> AdapterStatus:
        """Return the status."""
        ...

    async def start(self, context: AdapterContext) -> None:
        """Connect; an exception, or the status ``error`` afterwards, means that it did not start."""
        ...

    async def stop(self) -> None:
        """Release all resources; stopping again does nothing."""
        ...

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Deliver one message to the platform."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterServices:
    """The parts of the bus that adapters use, through their contexts."""

    clock: Clock
    publisher: Publisher
    send_signal: Callable[[str, Signal], None]
    on_signal: Callable[[str, SignalHandler], SignalSubscription]
    owner_of_sender: Callable[[str], str | None]
    """Returns the adapter that a sender is reserved for."""
    wait_open: Callable[[], Awaitable[None]]
    """Returns once adapters may publish."""
    shared: Shared
    """Resources that adapters share, such as a port to listen on."""


@dataclass(slots=True)
class PublishCounts:
    """Counts of the messages that an adapter published; they outlive a replacement."""

    accepted: int = 0
    """Including repetitions that were recognised by their dedupe id."""
    refused: int = 0

    def add(self, other: PublishCounts) -> None:
        """Add another adapter's counts."""
        self.accepted += other.accepted
        self.refused += other.refused


class AdapterContext:
    """The bus as an adapter sees it, from its start until it has stopped."""

    def __init__(self, services: AdapterServices, adapter_id: str, data_dir: Path) -> None:
        self.adapter_id = adapter_id
        self.clock = services.clock
        self.data_dir = data_dir
        """A private directory."""
        self.logger = logging.getLogger(f"relay_core.adapters.interface.{adapter_id}")
        self.on_status: Callable[[], None] | None = None
        """Called by `status_changed`."""
        self.starter: asyncio.Task[Any] | None = None
        """The task that runs `start`, which may publish before other adapters have started."""
        self.entered = asyncio.Event()
        """Set once the adapter is registered, with its senders, or has failed to start."""
        self.published = PublishCounts()
        self._services: AdapterServices | None = services
        self._signals: list[SignalSubscription] = []

    async def publish(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        parent_id: str | None = None,
        dedupe_id: str | None = None,
        echo: bool = False,
    ) -> PublishResult:
        """Publish a message, which this adapter does not receive unless `echo` is set; see `RelayCore.publish`.

        Does not wait for other adapters' answers: two adapters could wait for each other forever.

        Raises:
            Closed: if the adapter has been stopped.
            AccessDenied: also if the sender is reserved for another adapter or the bus.
        """
        # An answer is not held back: another adapter may be waiting for it.
        if parent_id is None and asyncio.current_task() is not self.starter:
            await self.entered.wait()
            await self._open_services().wait_open()
        services = self._open_services()
        try:
            self._check_sender(services, sender)
            result = await services.publisher.publish(
                subject,
                payload,
                sender=sender,
                reply_to=reply_to,
                overrides=budget,
                parent_id=parent_id,
                dedupe_id=dedupe_id,
                origin=None if echo else self.adapter_id,
                reader=adapter_reader(self.adapter_id),
                waits=False,
            )
        except RelayError:
            self.published.refused += 1
            raise
        if result.is_refused:
            self.published.refused += 1
        else:
            self.published.accepted += 1
        return result

    def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to current listeners; see `RelayCore.signal`."""
        self._open_services().send_signal(subject, signal)

    def on_signal(self, pattern: str, handler: SignalHandler) -> SignalSubscription:
        """Call `handler(subject, signal)` for the signals of a pattern, until it is closed or the adapter stops."""
        subscription = self._open_services().on_signal(pattern, handler)
        self._signals.append(subscription)
        return subscription

    @asynccontextmanager
    async def share(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Use a resource that adapters of this bus share by key: created for the first user, closed after the last.

        For example a listener on a port, which an adapter and its replacement need at the same time.
        """
        async with self._open_services().shared.use(key, make) as resource:
            yield resource

    def status_changed(self) -> None:
        """Announce that the adapter's status has changed."""
        if self.on_status is not None:
            self.on_status()

    def close(self) -> None:
        """Disconnect from the bus; the registry calls this when the adapter has stopped."""
        self._services = None
        self.entered.set()
        self.on_status = None
        for subscription in self._signals:
            subscription.close()

    def _check_sender(self, services: AdapterServices, sender: str) -> None:
        owner = services.owner_of_sender(sender)
        if owner not in (None, self.adapter_id) or sender.startswith(SYSTEM_PREFIX):
            holder = f"adapter {owner}" if owner is not None else "the bus itself"
            raise AccessDenied(f"{sender} is reserved for {holder}", sender=sender, code="sender_reserved")

    def _open_services(self) -> AdapterServices:
        if self._services is None:
            raise Closed(f"adapter {self.adapter_id} has been stopped")
        return self._services


class DeliveryContext:
    """One delivery, besides its envelope."""

    __slots__ = ("_adapter", "_expires_ms", "message_id", "parent_id", "replays", "trace_id")

    def __init__(self, adapter: AdapterContext, envelope: Envelope, delivery: Delivery) -> None:
        self._adapter = adapter
        self._expires_ms = envelope.budget.ttl
        self.message_id = envelope.id
        self.replays = envelope.replays
        """The number of replays so far: 0 at the first delivery."""
        self.trace_id = delivery.trace_id
        """The first message of the conversation."""
        self.parent_id = delivery.parent_id
        """The message whose handling published this one."""

    @property
    def remaining(self) -> float:
        """Return the seconds until the message expires; negative afterwards."""
        return (self._expires_ms - self._adapter.clock.now_ms()) / 1000

    async def publish(
        self,
        subject: str,
        payload: Any,
        *,
        sender: str,
        reply_to: str | None = None,
        budget: BudgetOverrides | Mapping[str, Any] | None = None,
        dedupe_id: str | None = None,
        echo: bool = False,
    ) -> PublishResult:
        """Publish an answer to the message, which is its parent: the remaining budget is inherited."""
        return await self._adapter.publish(
            subject,
            payload,
            sender=sender,
            reply_to=reply_to,
            budget=budget,
            parent_id=self.message_id,
            dedupe_id=dedupe_id,
            echo=echo,
        )

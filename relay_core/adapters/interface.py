"""The adapter seam: what a bridge to an outside platform must offer, and what it is given.

An adapter takes the messages of its patterns out to a platform (`deliver`) and publishes what comes
in from there (`AdapterContext.publish`). It has an `id` (one subject token), so that its mailbox is
``relay.adapter.{id}`` and its private directory ``adapters/{id}``. What it may count on:

1. `start` comes first and `stop` last; a stopped adapter may be started again. `stop` is also called
   after a `start` that failed, and may come while a delivery is under way.
2. It gets one message at a time (in each lane), in order, each at most once, and only while its status is
   ``connected``. In any other state its mail waits on disk; `AdapterContext.status_changed` says when
   to look again (a status that nobody announced is seen by the next publish or probe).
3. A raised exception, a result with ``ok=False`` and a timeout are failures: the message is parked,
   the breaker counts, nothing is tried again but by an operator's replay. Only a platform that says when to
   ask again (`DeliveryResult.retry_after`) is asked again, until the message expires.
4. It never gets back a message that it published itself, unless it said that it may (`echo`).
5. What it says of itself in a status, a result or an error never shows the secrets of its config.
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
from relay_core.errors import AccessDenied, Closed
from relay_core.messages.delivery import Delivery
from relay_core.messages.envelope import BudgetOverrides, Envelope
from relay_core.messages.operator_views import STATE_NAMES, StateName
from relay_core.messages.results import PublishResult
from relay_core.messages.signals import Signal, SignalHandler, SignalSubscription
from relay_core.messages.subjects import SYSTEM_PREFIX
from relay_core.pipeline.publisher import Publisher, finish
from relay_core.rules.replies import adapter_reader

DEFAULT_TIMEOUT_SECS = 30.0
DRAIN_TIMEOUT_SECS = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdapterStatus:
    """How an adapter says it is doing."""

    state: StateName
    detail: str | None = None
    """Why, in words an operator can act on."""
    since: int | None = None
    """Wall time in milliseconds; the moment the bus noticed, if the adapter does not say."""

    def __post_init__(self) -> None:
        if self.state not in STATE_NAMES:
            raise ValueError(f"no adapter state {self.state!r}: it is one of {', '.join(STATE_NAMES)}")


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of one delivery."""

    ok: bool
    error: str | None = None
    """What went wrong, in one sentence."""
    code: str | None = None
    """The platform's own word or number for it."""
    detail: str | None = None
    """What a trace should keep of a success, such as the platform's message id."""
    retry_after: float | None = None
    """With ``ok=False``: the platform did not take it and names the seconds after which to ask again. Until then the
    message waits at the head of its line, as if it had not been begun."""


class Adapter(Protocol):
    """A bridge to an outside platform.

    An adapter may also have these, read when it is added:

    - ``detached: bool = False``: a publish does not wait for its answer and counts it once stored.
    - ``priority: int = 0``: of several adapters the one with the highest gets the message first.
    - ``senders: Sequence[str] = ()``: patterns of the senders that it alone publishes as, beside its own
      subject ``relay.adapter.{id}``; nobody else may claim one of them while it runs.
    - ``rate: float | None = None``: messages per second; more than that wait, none is refused.
    - ``timeout: float = 30``: seconds one delivery may take, waiting for its turn not counted.
    - ``def lane(self, subject: str) -> str | None``: one subject token; messages of different lanes go side by side,
      each lane with a mailbox (``relay.adapter.{id}.{lane}``), an order and a breaker of its own. None is the main one.
    - ``max_in_flight: int | None = None``: how many lanes may have a message in hand at a time.
    - ``drain: float = 10``: seconds that what it has in hand may still take when a reload replaces it.
    - ``bound: bool = False``: its subjects are people: who writes to one needs a binding (`relay_core.rules.bindings`).
    - ``async def health(self) -> bool``: whether the platform can be reached right now.
    """

    @property
    def id(self) -> str:
        """Return its name, one subject token."""
        ...

    @property
    def patterns(self) -> Sequence[str]:
        """Return the patterns of the subjects whose messages it takes."""
        ...

    @property
    def status(self) -> AdapterStatus:
        """Return how it is doing."""
        ...

    async def start(self, context: AdapterContext) -> None:
        """Connect; whatever is raised, or a status of ``error`` afterwards, means that it did not start."""
        ...

    async def stop(self) -> None:
        """Let go of everything; stopping again does nothing."""
        ...

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Take one message out to the platform."""
        ...


@dataclass(frozen=True, slots=True)
class AdapterServices:
    """The parts of the bus that adapters use, through their contexts."""

    clock: Clock
    publisher: Publisher
    send_signal: Callable[[str, Signal], None]
    on_signal: Callable[[str, SignalHandler], SignalSubscription]
    owner_of_sender: Callable[[str], str | None]
    """Returns the adapter that alone publishes as a sender."""
    wait_open: Callable[[], Awaitable[None]]
    """Returns once adapters may publish."""
    shared: Shared
    """Resources that adapters share, such as a port to listen on."""


class AdapterContext:
    """The bus as an adapter sees it, from its start until it has stopped."""

    def __init__(self, services: AdapterServices, adapter_id: str, data_dir: Path) -> None:
        self.adapter_id = adapter_id
        self.clock = services.clock
        self.data_dir = data_dir
        """A directory of its own that nobody else can enter."""
        self.logger = logging.getLogger(f"relay_core.adapters.interface.{adapter_id}")
        self.on_status: Callable[[], None] | None = None
        """Told by `status_changed`."""
        self.starter: asyncio.Task[Any] | None = None
        """The task that starts it, which may publish before anybody is there to take it."""
        self.entered = asyncio.Event()
        """Set when the bus has taken the adapter in, and knows whose voice its messages are; or will not."""
        self._services: AdapterServices | None = services
        self._heard: list[SignalSubscription] = []

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
        """Publish a message that this adapter will not get back unless `echo` says so; see `RelayCore.publish`.

        It waits for no other adapter's answer: two that waited for each other would be stuck.

        Raises:
            Closed: if the adapter has been stopped.
            AccessDenied: also if the sender is another adapter's, or the bus's own.
        """
        # An answer does not wait: another adapter may be waiting for it.
        if parent_id is None and asyncio.current_task() is not self.starter:
            await self.entered.wait()
            await self._open_services().wait_open()
        services = self._open_services()
        owner = services.owner_of_sender(sender)
        if owner not in (None, self.adapter_id) or sender.startswith(SYSTEM_PREFIX):
            whose = f"adapter {owner}" if owner is not None else "the bus itself"
            raise AccessDenied(f"{sender} is reserved for {whose}", sender=sender, code="sender_reserved")
        begun = services.publisher.begin(
            subject,
            payload,
            sender=sender,
            reply_to=reply_to,
            budget=budget,
            parent_id=parent_id,
            dedupe_id=dedupe_id,
            origin=None if echo else self.adapter_id,
            reader=adapter_reader(self.adapter_id),
            waits=False,
        )
        return await finish(begun)

    def signal(self, subject: str, signal: Signal) -> None:
        """Send a signal to whoever listens right now; see `RelayCore.signal`."""
        self._open_services().send_signal(subject, signal)

    def on_signal(self, pattern: str, handler: SignalHandler) -> SignalSubscription:
        """Call `handler(subject, signal)` for the signals of a pattern, until it is closed or the adapter stops."""
        subscription = self._open_services().on_signal(pattern, handler)
        self._heard.append(subscription)
        return subscription

    @asynccontextmanager
    async def share(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Use what all adapters of this bus have in common under a key: made for the first, closed after the last.

        A listener on a port, for instance, that an adapter and the one that replaces it both need at once.
        """
        async with self._open_services().shared.use(key, make) as common:
            yield common

    def status_changed(self) -> None:
        """Say that the adapter's status is another one now."""
        if self.on_status is not None:
            self.on_status()

    def close(self) -> None:
        """End all dealings with the bus; its registry calls this when the adapter has stopped."""
        self._services = None
        self.entered.set()
        self.on_status = None
        for subscription in self._heard:
            subscription.close()

    def _open_services(self) -> AdapterServices:
        if self._services is None:
            raise Closed(f"adapter {self.adapter_id} has been stopped")
        return self._services


class DeliveryContext:
    """What an adapter is told about one delivery beside its envelope."""

    __slots__ = ("_adapter", "_expires_ms", "message_id", "parent_id", "replays", "trace_id")

    def __init__(self, adapter: AdapterContext, envelope: Envelope, delivery: Delivery) -> None:
        self._adapter = adapter
        self._expires_ms = envelope.budget.ttl
        self.message_id = envelope.id
        self.replays = envelope.replays
        """How often an operator has replayed the message: 0 at its first delivery."""
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
        """Publish in answer to the message: it is the parent, and what its budget had left is inherited."""
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

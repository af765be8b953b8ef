"""Add, replace and remove adapters.

1. Adding: the adapter is validated and started, its mailbox is opened, and only then does it match. If any of that
   fails, it is stopped again.
2. Replacing (hot reload): the new adapter is started first, then takes over patterns and mailbox in one step, then the
   old one is drained and stopped. If the new one does not start, the old one stays. A mailbox has one dispatcher, so no
   message is lost, doubled or overtaken. An old adapter with a long `drain` finishes its messages in flight while the
   new one is working already.
3. Removing: nothing more matches, messages in flight are finished, the adapter is stopped. Its messages stay on disk
   and wait for an adapter of the same id.
4. While several are being started (`held`), what they publish waits until all have started: the adapter that takes it
   may be the next. Only publishes within `start` itself, and answers to a message, do not wait.
5. Closing the bus drains and stops all of them concurrently. They match until the end: messages published meanwhile are
   stored for the next start.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_core.adapters.host import (
    STOP_TIMEOUT_SECS,
    AdapterHost,
    note_adapter,
    read_status,
    stop_adapter,
)
from relay_core.adapters.interface import DRAIN_TIMEOUT_SECS, Adapter, AdapterContext, AdapterServices
from relay_core.adapters.lane import Redact
from relay_core.adapters.routes import AdapterRoutes
from relay_core.adapters.shared_resource import Shared
from relay_core.adapters.validation import NO_SETTINGS, AdapterSettings, AdapterTraits, read_shape
from relay_core.clock import Clock
from relay_core.dispatch.dispatcher import Dispatch
from relay_core.dispatch.mailbox_lifecycle import MailboxLifecycle
from relay_core.errors import Closed, ConfigError, NotFound, RelayError, StorageError
from relay_core.messages.delivery import TargetKind
from relay_core.messages.operator_views import AdapterState
from relay_core.messages.signals import SignalHub
from relay_core.pipeline.publisher import Publisher
from relay_core.pipeline.signal_sender import SignalSender
from relay_core.records.recorder import Recorder
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.mailboxes import Mailboxes
from relay_core.storage.trusted_file import UntrustedFile, check_owner
from relay_core.tasks import Tasks

START_TIMEOUT_SECS = 30.0


class Adapters:
    """The adapters of a bus."""

    def __init__(
        self,
        routes: AdapterRoutes,
        publisher: Publisher,
        signals: SignalHub,
        signal_sender: SignalSender,
        mailboxes: Mailboxes,
        lifecycle: MailboxLifecycle,
        dispatch: Dispatch,
        recorder: Recorder,
        clock: Clock,
        tasks: Tasks,
        directory: Path,
        on_added: Callable[[], None],
    ) -> None:
        self._routes = routes
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._dispatch = dispatch
        self._recorder = recorder
        self._clock = clock
        self._tasks = tasks
        self._directory = directory
        """Where each adapter has a private directory."""
        self._on_added = on_added
        self._leaving: set[AdapterHost] = set()
        """Replaced adapters with messages in flight."""
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One change of an adapter at a time, by id."""
        self._closed = False
        self._open = asyncio.Event()
        self._open.set()
        self.services = AdapterServices(
            clock=clock,
            publisher=publisher,
            send_signal=signal_sender.send,
            on_signal=signals.on,
            owner_of_sender=routes.owner_of_sender,
            wait_open=self._wait_open,
            shared=Shared(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back publishes of adapters meanwhile."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def _wait_open(self) -> None:
        """Return once adapters may publish."""
        await self._open.wait()

    async def add(
        self,
        adapter: Adapter,
        *,
        start_timeout: float = START_TIMEOUT_SECS,
        redact: Redact = str,
        settings: AdapterSettings = NO_SETTINGS,
    ) -> AdapterState:
        """Start an adapter and give it its messages, waiting ones first.

        Its texts go through `redact` first. The operator's `settings` win over its attributes.

        Raises:
            ConfigError: if it does not implement Adapter, or its id is taken.
            RelayError: with code `adapter_failed`, if it does not start.
        """
        shape = read_shape(adapter, settings)
        async with self._changing[shape.id]:
            if shape.id in self._routes.hosts:
                raise ConfigError(f"there is an adapter {shape.id} already: replace it, or choose another id", key="id")
            host = await self._start(adapter, shape, start_timeout, redact)
            self._enter(host)
            return host.state()

    async def replace(
        self,
        adapter: Adapter,
        *,
        start_timeout: float = START_TIMEOUT_SECS,
        drain_timeout: float | None = None,
        redact: Redact = str,
        settings: AdapterSettings = NO_SETTINGS,
    ) -> AdapterState:
        """Put an adapter in the place of the one with the same id; return once that one has stopped.

        It is drained for `drain_timeout`, the drain of the new settings, or its own `drain`, whichever is given first;
        this call does not wait longer than the default for that.

        Raises:
            ConfigError: if it does not implement Adapter; the old one stays.
            RelayError: with code `adapter_failed`, if it does not start; the old one stays.
            NotFound: if there is none to replace.
        """
        shape = read_shape(adapter, settings)
        async with self._changing[shape.id]:
            old = self._host(shape.id)
            host = await self._start(adapter, shape, start_timeout, redact)
            host.take_over(old)
            self._routes.remove(old)
            self._enter(host)
            drain = old.shape.drain if settings.drain is None else settings.drain
            drain = drain if drain_timeout is None else drain_timeout
            leaving = self._tasks.start(self._drain(old, drain), name=f"adapter {shape.id} leaves")
            assert leaving is not None  # a bus that is closing starts no adapter
            await asyncio.wait({leaving}, timeout=min(drain, DRAIN_TIMEOUT_SECS) + STOP_TIMEOUT_SECS)
            return host.state()

    async def remove(self, adapter_id: str, *, drain_timeout: float | None = None) -> None:
        """Stop an adapter; its messages stay on disk. It is drained for its `drain`, at most for the default.

        Raises:
            NotFound: if there is none.
        """
        async with self._changing[adapter_id]:
            host = self._host(adapter_id)
            self._routes.remove(host)
            try:
                await host.leave(host.brief_drain if drain_timeout is None else drain_timeout, "removed")
            finally:
                for mailbox in host.mailboxes():
                    mailbox.is_handled = False
            await asyncio.to_thread(self._mailboxes.unregister, host.mailbox)
            note_adapter(self._recorder, host.mailbox, adapter_id, "removed", None)

    async def probe(self, adapter_id: str | None = None) -> list[AdapterState]:
        """Run the health probe of one adapter, or of all; return their states.

        Raises:
            NotFound: if there is none with that id.
        """
        hosts = list(self._routes.hosts.values()) if adapter_id is None else [self._host(adapter_id)]
        async with asyncio.TaskGroup() as group:
            for host in hosts:
                group.create_task(host.probe())
        return [host.state() for host in hosts]

    def states(self) -> list[AdapterState]:
        """Return the state of every adapter, by id."""
        return [host.state() for _, host in sorted(self._routes.hosts.items())]

    async def close(self) -> None:
        """Drain and stop all adapters."""
        self._closed = True
        for host in self._leaving:
            host.hurry()
        async with asyncio.TaskGroup() as group:
            for host in self._routes.hosts.values():
                group.create_task(host.leave(host.brief_drain, "the bus is closing"))

    async def _start(self, adapter: Adapter, shape: AdapterTraits, timeout: float, redact: Redact) -> AdapterHost:
        """Start an adapter that matches nothing yet; on failure, stop it again."""
        context = AdapterContext(self.services, shape.id, private_directory(self._directory / shape.id))
        context.starter = asyncio.current_task()
        try:
            await _start_adapter(adapter, context, shape.id, timeout, redact)
            context.starter = None
            mailbox = await self._lifecycle.open(shape.subject, TargetKind.ADAPTER, registered=True)
            if self._closed:
                raise Closed("the bus is closing")
        except BaseException:
            await stop_adapter(adapter, shape.id, redact)
            context.close()
            raise
        return AdapterHost(
            adapter,
            shape,
            context,
            mailbox,
            redact,
            mailboxes=self._mailboxes,
            lifecycle=self._lifecycle,
            dispatch=self._dispatch,
            recorder=self._recorder,
            clock=self._clock,
        )

    async def _drain(self, host: AdapterHost, drain: float) -> None:
        """Drain and stop a replaced adapter."""
        self._leaving.add(host)
        try:
            await host.leave(drain, "replaced")
        finally:
            self._leaving.discard(host)

    def _enter(self, host: AdapterHost) -> None:
        self._routes.add(host)
        host.context.entered.set()
        host.offer()
        self._on_added()

    def _host(self, adapter_id: str) -> AdapterHost:
        host = self._routes.hosts.get(adapter_id)
        if host is None:
            raise NotFound(f"no adapter {adapter_id}", what=adapter_id)
        return host


def private_directory(path: Path) -> Path:
    """Return a directory that only its owner can enter, created if necessary.

    Raises:
        StorageError: if the disk refuses, or a link or another user's directory is in its place.
    """
    try:
        for directory in (path.parent, path):
            check_owner(directory)
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
    except UntrustedFile as error:
        raise StorageError(str(error), path=str(path)) from error
    except OSError as error:
        raise storage_error("use", path, error) from error
    return path


async def _start_adapter(adapter: Adapter, context: AdapterContext, name: str, timeout: float, redact: Redact) -> None:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            await adapter.start(context)
    except Exception as error:
        why = f"no answer within {timeout:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
        raise RelayError(f"adapter {name} did not start: {redact(why)}", code="adapter_failed") from None
    status = read_status(adapter)
    if status.state == "error":
        why = status.detail or "its status is error"
        raise RelayError(f"adapter {name} did not start: {redact(why)}", code="adapter_failed")

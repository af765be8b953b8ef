"""All adapters: which there are, what they match, and how they come, change places and go.

1. Adding: the shape is checked, the adapter is started, its mailbox is opened, and only then does it
   match. If any of that fails, nothing of it stays.
2. Replacing (hot reload): the new one is started first, then takes over patterns and mailbox in one
   step, then the old one is drained and stopped. If the new one does not start, the old one stays.
   A mailbox has one dispatcher, so no message is lost, doubled or overtaken.
   An old one that may take long (`drain`) finishes what it has in hand while the new one works already.
3. Removing: nothing more matches, what is under way is finished, the adapter is stopped. Its mail
   stays on disk and waits for an adapter of the same id.
4. While somebody starts several (`held`), what they bring in waits until all are there: the one that would take it
   may be the next. Only what is said in a `start` itself, or in answer to a message, does not wait.
5. Closing the bus drains and stops all of them, at the same time. They match until the end: what is
   published meanwhile is stored for the next start.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from relay_core.adapter import DRAIN_TIMEOUT_SECS, Adapter, AdapterContext
from relay_core.adapter_host import (
    STOP_TIMEOUT_SECS,
    AdapterHost,
    Conceal,
    note_adapter,
    read_status,
    stop_adapter,
)
from relay_core.adapter_shape import AdapterShape, read_shape
from relay_core.consumers import Consumer
from relay_core.delivery import TargetKind
from relay_core.errors import Closed, ConfigError, NotFound, RelayError, StorageError
from relay_core.files import storage_error
from relay_core.mailbox import Mailbox
from relay_core.notices import Notices
from relay_core.operations import AdapterState
from relay_core.own_files import Unreadable, check_own
from relay_core.sharing import Shared
from relay_core.subjects import ADAPTER_PREFIX, adapter_of
from relay_core.trie import SubjectTrie

if TYPE_CHECKING:
    from relay_core.bus import Bus

START_TIMEOUT_SECS = 30.0


class Adapters:
    """The adapters of a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._hosts: dict[str, AdapterHost] = {}
        self._leaving: set[AdapterHost] = set()
        """Replaced ones that still have something in hand."""
        self._patterns: SubjectTrie[AdapterHost] = SubjectTrie()
        self._senders: SubjectTrie[AdapterHost] = SubjectTrie()
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One change of an adapter at a time, by id."""
        self._people = 0
        """Adapters whose subjects are people."""
        self._closed = False
        self._notices = Notices(bus)
        self._open = asyncio.Event()
        self._open.set()
        self.shared = Shared()
        """What adapters have in common, such as a port to listen on."""

    async def __aenter__(self) -> Self:
        self._notices.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let nothing in from the adapters meanwhile."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def wait_open(self) -> None:
        """Return once adapters may bring something in."""
        await self._open.wait()

    def matching(self, subject: str, origin: str | None = None) -> list[AdapterHost]:
        """Return the adapters that take a subject's messages, highest priority first, but not their origin."""
        if not self._hosts:
            return []
        hosts = {host.name: host for host in self._patterns.match(subject)}
        if origin is not None:
            hosts.pop(origin, None)
        return sorted(hosts.values(), key=_by_priority)

    def consumers(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        """Return the adapter that handles a mailbox's next message, if it can take one, and its timeout."""
        host = self._hosts.get(adapter_of(mailbox.subject))
        return host.lane(mailbox).consumers() if host is not None else ((), 0.0)

    def has(self, mailbox: Mailbox) -> bool:
        """Return True if the adapter that a mailbox belongs to is running, whatever its state."""
        return adapter_of(mailbox.subject) in self._hosts

    def is_voice(self, sender: str, subject: str, origin: str | None) -> bool:
        """Tell whether this is a chat that speaks: its adapter brings in what somebody wrote there."""
        return origin is not None and sender == subject and self.owner_of_sender(sender) == origin

    def is_person(self, subject: str) -> bool:
        """Tell whether a subject is a person's, so that only those who are bound to it may write there."""
        return self._people > 0 and any(host.shape.bound for host in self._patterns.match(subject))

    def owner_of_sender(self, sender: str) -> str | None:
        """Return the id of the adapter that alone publishes as a sender, if one does.

        What lies below ``relay.adapter.{id}`` is that adapter's, whether or not it runs.
        """
        if sender.startswith(ADAPTER_PREFIX):
            return adapter_of(sender)
        if not self._senders:
            return None
        owners = self._senders.match(sender)
        return min(owners, key=_by_priority).name if owners else None

    async def add(
        self, adapter: Adapter, *, start_timeout: float = START_TIMEOUT_SECS, conceal: Conceal = str
    ) -> AdapterState:
        """Start an adapter and give it its messages, those that wait already first.

        What it says goes through `conceal` before anybody sees it.

        Raises:
            ConfigError: if it has not the shape of an adapter, or its id is taken.
            RelayError: with code `adapter_failed`, if it does not start.
        """
        shape = read_shape(adapter)
        async with self._changing[shape.id]:
            if shape.id in self._hosts:
                raise ConfigError(f"there is an adapter {shape.id} already: replace it, or choose another id", key="id")
            host = await self._start(adapter, shape, start_timeout, conceal)
            self._enter(host)
            return host.state()

    async def replace(
        self,
        adapter: Adapter,
        *,
        start_timeout: float = START_TIMEOUT_SECS,
        drain_timeout: float | None = None,
        conceal: Conceal = str,
    ) -> AdapterState:
        """Put an adapter in the place of the one with the same id; return once that one has stopped.

        It is drained for as long as its `drain` says, or for `drain_timeout`; what takes longer than the usual
        time goes on without anybody waiting.

        Raises:
            ConfigError: if it has not the shape of an adapter; the old one stays.
            RelayError: with code `adapter_failed`, if it does not start; the old one stays.
            NotFound: if there is none to replace.
        """
        shape = read_shape(adapter)
        async with self._changing[shape.id]:
            old = self._host(shape.id)
            host = await self._start(adapter, shape, start_timeout, conceal)
            host.take_over(old)
            self._forget(old)
            self._enter(host)
            drain = old.shape.drain if drain_timeout is None else drain_timeout
            leaving = self._bus.tasks.start(self._let_go(old, drain), name=f"adapter {shape.id} leaves")
            assert leaving is not None  # a bus that is closing starts no adapter
            await asyncio.wait({leaving}, timeout=min(drain, DRAIN_TIMEOUT_SECS) + STOP_TIMEOUT_SECS)
            return host.state()

    async def remove(self, adapter_id: str, *, drain_timeout: float = DRAIN_TIMEOUT_SECS) -> None:
        """Stop an adapter; its mail stays on disk.

        Raises:
            NotFound: if there is none.
        """
        async with self._changing[adapter_id]:
            host = self._host(adapter_id)
            self._forget(host)
            del self._hosts[adapter_id]
            try:
                await host.leave(drain_timeout, "removed")
            finally:
                for mailbox in host.mailboxes():
                    mailbox.is_handled = False
            await asyncio.to_thread(self._bus.mailboxes.unregister, host.mailbox)
            note_adapter(self._bus, host.mailbox, adapter_id, "removed", None)

    async def probe(self, adapter_id: str | None = None) -> list[AdapterState]:
        """Ask one adapter, or all, whether they are well; return how they are doing.

        Raises:
            NotFound: if there is none with that id.
        """
        hosts = list(self._hosts.values()) if adapter_id is None else [self._host(adapter_id)]
        async with asyncio.TaskGroup() as group:
            for host in hosts:
                group.create_task(host.probe())
        return [host.state() for host in hosts]

    def states(self) -> list[AdapterState]:
        """Return how every adapter is doing, by id."""
        return [self._hosts[name].state() for name in sorted(self._hosts)]

    async def close(self) -> None:
        """Drain and stop all adapters."""
        self._closed = True
        for host in self._leaving:
            host.hurry()
        async with asyncio.TaskGroup() as group:
            for host in self._hosts.values():
                group.create_task(host.leave(DRAIN_TIMEOUT_SECS, "the bus is closing"))

    async def _start(self, adapter: Adapter, shape: AdapterShape, timeout: float, conceal: Conceal) -> AdapterHost:
        """Start an adapter that matches nothing yet; if that fails it is stopped again."""
        bus = self._bus
        context = AdapterContext(bus, shape.id, private_directory(bus.data_dir.path / "adapters" / shape.id))
        context.starter = asyncio.current_task()
        try:
            await _start_adapter(adapter, context, shape.id, timeout, conceal)
            context.starter = None
            mailbox = await bus.open_mailbox(shape.subject, TargetKind.ADAPTER, registered=True)
            if self._closed:
                raise Closed("the bus is closing")
        except BaseException:
            await stop_adapter(adapter, shape.id, conceal)
            context.close()
            raise
        return AdapterHost(bus, adapter, shape, context, mailbox, conceal)

    async def _let_go(self, host: AdapterHost, drain: float) -> None:
        """Let a replaced adapter finish and stop."""
        self._leaving.add(host)
        try:
            await host.leave(drain, "replaced")
        finally:
            self._leaving.discard(host)

    def _enter(self, host: AdapterHost) -> None:
        self._hosts[host.name] = host
        self._people += host.shape.bound
        for pattern in host.shape.patterns:
            self._patterns.add(pattern, host)
        for pattern in host.shape.senders:
            self._senders.add(pattern, host)
        host.context.entered.set()
        host.offer()
        self._notices.flush()

    def _forget(self, host: AdapterHost) -> None:
        self._people -= host.shape.bound
        for pattern in host.shape.patterns:
            self._patterns.remove(pattern, host)
        for pattern in host.shape.senders:
            self._senders.remove(pattern, host)

    def _host(self, adapter_id: str) -> AdapterHost:
        host = self._hosts.get(adapter_id)
        if host is None:
            raise NotFound(f"no adapter {adapter_id}", what=adapter_id)
        return host


def private_directory(path: Path) -> Path:
    """Return a directory that only its owner can enter, made if need be.

    Raises:
        StorageError: if the disk refuses, or a link or another user's directory is in its place.
    """
    try:
        for directory in (path.parent, path):
            check_own(directory)
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
    except Unreadable as error:
        raise StorageError(str(error), path=str(path)) from error
    except OSError as error:
        raise storage_error("use", path, error) from error
    return path


async def _start_adapter(
    adapter: Adapter, context: AdapterContext, name: str, timeout: float, conceal: Conceal
) -> None:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            await adapter.start(context)
    except Exception as error:
        why = f"no answer within {timeout:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
        raise RelayError(f"adapter {name} did not start: {conceal(why)}", code="adapter_failed") from None
    status = read_status(adapter)
    if status.state == "error":
        why = status.detail or "its status is error"
        raise RelayError(f"adapter {name} did not start: {conceal(why)}", code="adapter_failed")


def _by_priority(host: AdapterHost) -> tuple[int, str]:
    return -host.shape.priority, host.name

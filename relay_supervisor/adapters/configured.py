"""The adapters that adapters.json lists: started, probed, restarted and reloaded.

1. No adapter and no entry can fail the supervisor. Problems are shown in `states` and `problem`, logged, and signalled
   when they change (`RelayCore.report_problem`).
2. A changed entry is checked completely before the running adapter is touched, which keeps running until its
   replacement has started. An unchanged entry is left alone.
3. An adapter that does not start is retried after 1 s, 2 s, 4 s … 60 s, until it starts or its entry changes. An
   invalid entry is not retried: only a change or a reload can help.
4. Adapters are probed every 30 s, or as often as their entry says (`probeSecs`): one task per interval. One that is in
   error at two probes in a row is replaced by a new instance; if that does not start, the old one stays and rule 3
   applies, unless the old one recovers.
5. Reloads run one at a time, and each completes even if its caller is cancelled. An adapter is changed by one task at
   a time (`_Slot.lock`), so one that hangs while it starts delays only itself.
6. Leaving the context ends probes, retries and reloads, not the adapters: the bus drains them when it closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from relay_core.clock import Clock, Timer, call_later, sleep
from relay_core.core import RelayCore
from relay_core.errors import Closed, ConfigError, NotFound, RelayError
from relay_core.limited_log import LimitedLog
from relay_core.messages.operator_views import ConfiguredAdapter
from relay_core.storage.file_watch import FileWatch
from relay_core.tasks import Tasks
from relay_supervisor.adapters.file import AdaptersFile, Entry, read_adapters, set_enabled, unknown_adapter
from relay_supervisor.adapters.loading import Prepared, one_line, prepare, redact_values
from relay_supervisor.adapters.settings import PROBE_SECS
from relay_supervisor.observability.secrets import SecretRedactor

logger = logging.getLogger(__name__)

BAD_PROBES = 2
FIRST_RETRY_SECS = 1.0
LAST_RETRY_SECS = 60.0
LOAD_TIMEOUT_SECS = 30.0


@dataclass(slots=True)
class _Slot:
    """An entry, and the adapter that runs for it."""

    entry: Entry
    running: Entry | None = None
    """The entry that the running adapter was made from."""
    outdated: bool = False
    """True if an operator asked for a new instance of the same entry."""
    problem: str | None = None
    warning: str | None = None
    redact: Callable[[str], str] | None = field(default=None, repr=False)
    """Removes the entry's secrets from a text, once they are known."""
    restarts: int = 0
    failures: int = 0
    """Consecutive failed starts."""
    bad_probes: int = 0
    timer: Timer | None = None
    retry_at: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @property
    def is_current(self) -> bool:
        """Return True if the running adapter is the one that the entry asks for."""
        return self.running == self.entry and not self.outdated

    def reset(self) -> None:
        """Clear failures, the problem and the retry."""
        self.problem = None
        self.outdated = False
        self.failures = self.bad_probes = 0
        self.cancel_retry()

    def cancel_retry(self) -> None:
        """Cancel the next attempt to start."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.retry_at = None


class ConfiguredAdapters:
    """Run the adapters of a file on a bus, as an async context manager."""

    def __init__(self, relay: RelayCore, path: Path, clock: Clock, redactor: SecretRedactor | None = None) -> None:
        self.problem: str | None = None
        """The problem with the file as a whole, or with a binding."""
        self._relay = relay
        self._path = path
        self._clock = clock
        self._log = LimitedLog(logger, clock)
        self._redactor = redactor or SecretRedactor()
        self._slots: dict[str, _Slot] = {}
        self._intervals: set[float] = set()
        """The intervals at which adapters are probed, each by a task."""
        self._read = relay.data_dir.read
        self._reloading = asyncio.Lock()
        self._tasks = Tasks()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start every enabled adapter; return when each has started or failed once."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop)
            watch = FileWatch(self._path.parent, [self._path.name], self._file_changed)
            # Watched before it is read, so no change is missed.
            await stack.enter_async_context(watch)
            with self._relay.hold_adapters():
                await self.reload()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def states(self) -> list[ConfiguredAdapter]:
        """Return every entry of the file and the state of its adapter, by id."""
        running = {state.id: state for state in self._relay.adapters()}
        return [
            ConfiguredAdapter(
                id=id,
                type=slot.entry.source,
                enabled=slot.entry.enabled,
                problem=slot.problem,
                warning=slot.warning,
                probe_secs=slot.entry.settings.probe_secs,
                restarts=slot.restarts,
                retry_at=slot.retry_at,
                state=running.get(id) if slot.running is not None else None,
            )
            for id, slot in sorted(self._slots.items())
        ]

    async def reload(self, name: str | None = None) -> None:
        """Read the file and apply it; restart the named adapter even if its entry has not changed.

        Raises:
            NotFound: if no entry has that name.
        """
        await self._finish(self._reload, name)

    async def enable(self, adapter_id: str) -> ConfiguredAdapter:
        """Enable an adapter in the file, and start it.

        Raises:
            NotFound: if there is no such entry.
            ConfigError, StorageError: if the file cannot be edited; nothing changes then.
        """
        await self._finish(self._switch, adapter_id, True)
        return self._state(adapter_id)

    async def disable(self, adapter_id: str) -> ConfiguredAdapter:
        """Disable an adapter in the file, and stop it; raises like `enable`."""
        await self._finish(self._switch, adapter_id, False)
        return self._state(adapter_id)

    async def test(self, adapter_id: str) -> ConfiguredAdapter:
        """Probe an adapter now, if it runs; raises NotFound if there is no such entry."""
        if self._slot(adapter_id).running is not None:
            await self._relay.probe_adapters(adapter_id)
        return self._state(adapter_id)

    # Applying the file

    # Reading the file and doing what it says

    def _file_changed(self, name: str) -> None:
        self._tasks.start(self._reload(None), name="adapters-reload")

    async def _reload(self, name: str | None) -> None:
        async with self._reloading:
            file = await asyncio.to_thread(read_adapters, self._path, self._read)
            await self._apply(file, name)
            if file.entries is not None and file.problem is None:
                counts = sum(entry.enabled for entry in file.entries), len(file.entries)
                self._log.info(("read", *counts), "adapters.json was read: %d of %d adapters are enabled", *counts)

    async def _switch(self, adapter_id: str, enabled: bool) -> None:
        async with self._reloading:
            await asyncio.to_thread(set_enabled, self._path, adapter_id, enabled, self._read)
            await self._apply(await asyncio.to_thread(read_adapters, self._path, self._read), None)

    async def _apply(self, file: AdaptersFile, restart: str | None) -> None:
        if file.problem is not None and file.problem != self.problem:
            logger.error("%s", file.problem)
        self.problem = file.problem
        self._relay.report_problem(self._path.name, file.problem)
        entries = file.entries
        if entries is None:  # unreadable: keep the running adapters
            entries = tuple(slot.entry for slot in self._slots.values())
        else:
            self._relay.set_bindings(file.bindings)  # before an adapter publishes
        wanted = {entry.id: entry for entry in entries}
        if restart is not None and restart not in wanted:
            raise unknown_adapter(restart, wanted)
        async with asyncio.TaskGroup() as group:
            for id in self._slots.keys() - wanted.keys():
                group.create_task(self._drop(self._slots[id]))
            for entry in entries:
                slot = self._slots.setdefault(entry.id, _Slot(entry))
                group.create_task(self._update(slot, entry, restart=entry.id == restart))
        for secs in {PROBE_SECS, *(slot.entry.settings.probe_secs for slot in self._slots.values())} - self._intervals:
            self._intervals.add(secs)
            self._tasks.start(self._keep_probing(secs), name=f"adapter-probes-{secs:g}")

    async def _update(self, slot: _Slot, entry: Entry, *, restart: bool) -> None:
        """Bring an adapter in line with its entry."""
        async with slot.lock:
            if restart or entry != slot.entry:
                slot.reset()
            slot.entry = entry
            slot.outdated = slot.outdated or restart
            if not entry.enabled:
                slot.problem = entry.problem
                await self._remove(slot)
            elif not slot.is_current and slot.timer is None:
                await self._try_start(slot)
            self._report(slot, slot.problem)

    async def _drop(self, slot: _Slot) -> None:
        async with slot.lock:
            slot.cancel_retry()
            await self._remove(slot)
            self._report(slot, None)
            del self._slots[slot.entry.id]

    async def _remove(self, slot: _Slot) -> None:
        if slot.running is None:
            return
        slot.running = None
        try:
            await self._relay.remove_adapter(slot.entry.id)
        except NotFound:
            pass
        except Exception as error:
            logger.error("adapter %s was not removed cleanly: %s", slot.entry.id, _explain(error, slot))

    # Starting, retrying, probing

    async def _try_start(self, slot: _Slot) -> bool:
        """Create the adapter and add it to the bus, or replace the running one; no adapter's error is raised."""
        entry = slot.entry
        try:
            slot.redact = None
            prepared = await self._prepare(entry)
            slot.redact = prepared.redact
            self._warn(slot, prepared.warning)
            adapter = prepared.make()
            if slot.running is None:
                await self._relay.add_adapter(adapter, redact=prepared.redact, settings=entry.settings.traits)
            else:
                await self._relay.replace_adapter(adapter, redact=prepared.redact, settings=entry.settings.traits)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failed(slot, "it cancelled its own start", retry=True)
        except (Exception, SystemExit) as error:
            if isinstance(error, NotFound):  # it was removed from the bus by other means
                slot.running = None
            self._failed(slot, _explain(error, slot), retry=not isinstance(error, ConfigError))
        else:
            if slot.failures:
                logger.info("adapter %s has started, after %d failed attempts", entry.id, slot.failures)
            slot.reset()
            slot.running = entry
            return True
        return False

    def _warn(self, slot: _Slot, warning: str | None) -> None:
        if warning is not None and warning != slot.warning:
            logger.warning("adapter %s: %s", slot.entry.id, warning)
        slot.warning = warning

    async def _prepare(self, entry: Entry) -> Prepared:
        """Load an entry's type and check its config in a thread: a plugin may import or read for long."""
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_SECS):
                return await asyncio.to_thread(prepare, entry, self._path.parent, self._redactor)
        except TimeoutError:
            # Not retried: each attempt could leave another thread that never ends.
            raise ConfigError(f"its type was not loaded within {LOAD_TIMEOUT_SECS:g} s: check what it does") from None

    def _failed(self, slot: _Slot, why: str, *, retry: bool) -> None:
        problem = why if slot.running is None else f"{why}; the running adapter stays in place"
        if problem != slot.problem:
            logger.warning("adapter %s: %s", slot.entry.id, problem)
        slot.problem = problem
        slot.cancel_retry()
        if retry:
            delay = min(FIRST_RETRY_SECS * 2**slot.failures, LAST_RETRY_SECS)
            slot.failures = min(slot.failures + 1, 16)
            slot.retry_at = self._clock.now_ms() + round(delay * 1000)
            slot.timer = call_later(self._clock, delay, lambda: self._due(slot))

    def _due(self, slot: _Slot) -> None:
        slot.timer = slot.retry_at = None
        self._tasks.start(self._retry(slot), name=f"adapter-retry-{slot.entry.id}")

    async def _retry(self, slot: _Slot) -> None:
        async with slot.lock:
            if slot.timer is not None or not slot.entry.enabled or self._slots.get(slot.entry.id) is not slot:
                return  # a reload came first
            restarts = slot.is_current
            if restarts and not self._is_in_error(slot):
                slot.reset()
            elif await self._try_start(slot) and restarts:
                slot.restarts += 1
                self._log.info(("restarted", slot.entry.id), "adapter %s was restarted", slot.entry.id)
            self._report(slot, slot.problem)

    async def _keep_probing(self, secs: float) -> None:
        """Probe the adapters of an interval; end when there are none, except for the default one."""
        while True:
            await sleep(self._clock, secs)
            slots = [slot for slot in self._slots.values() if slot.entry.settings.probe_secs == secs]
            if not slots and secs != PROBE_SECS:
                self._intervals.discard(secs)
                return
            async with asyncio.TaskGroup() as group:
                for slot in slots:
                    group.create_task(self._probe(slot))

    async def _probe(self, slot: _Slot) -> None:
        if slot.running is not None:
            try:
                await self._relay.probe_adapters(slot.entry.id)
            except NotFound:
                pass  # it has just been removed
            except Exception:
                logger.exception("adapter %s could not be probed", slot.entry.id)
                return
        self._count_probe(slot)

    def _count_probe(self, slot: _Slot) -> None:
        """Restart an adapter that was in error too often in a row."""
        slot.bad_probes = slot.bad_probes + 1 if self._is_in_error(slot) else 0
        if not slot.is_current or slot.timer is not None:
            return  # a new instance is due anyway
        if slot.bad_probes == 0:
            slot.problem = None  # it recovered without a restart
            self._report(slot, None)
        elif slot.bad_probes >= BAD_PROBES:
            slot.bad_probes = 0
            id = slot.entry.id
            text = "adapter %s was in error at %d probes in a row: restarting it"
            self._log.warning(("restart", id), text, id, BAD_PROBES)
            # Not awaited: an adapter that hangs must not delay the other probes.
            self._tasks.start(self._retry(slot), name=f"adapter-restart-{id}")

    def _is_in_error(self, slot: _Slot) -> bool:
        id = slot.entry.id
        return slot.running is not None and any(s.id == id and s.state == "error" for s in self._relay.adapters())

    # Shared steps

    def _report(self, slot: _Slot, problem: str | None) -> None:
        self._relay.report_problem(self._path.name, problem, adapter=slot.entry.id)

    async def _finish(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> None:
        """Run a change to its end even if the caller is cancelled."""
        task = self._tasks.start(_caught(work, *arguments), name="adapters-change")
        if task is None:
            raise Closed("the adapters are no longer supervised")
        try:
            error = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise Closed("the adapters are no longer supervised") from None
            raise
        if error is not None:
            raise error

    async def _stop(self) -> None:
        for slot in self._slots.values():
            slot.cancel_retry()
        await self._tasks.close()
        for slot in self._slots.values():  # a task that was ending may have set another
            slot.cancel_retry()

    def _slot(self, adapter_id: str) -> _Slot:
        slot = self._slots.get(adapter_id)
        if slot is None:
            raise unknown_adapter(adapter_id, self._slots)
        return slot

    def _state(self, adapter_id: str) -> ConfiguredAdapter:
        self._slot(adapter_id)
        return next(state for state in self.states() if state.id == adapter_id)


async def _caught(work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> RelayError | None:
    try:
        await work(*arguments)
    except RelayError as error:
        return error
    return None


def _explain(error: BaseException, slot: _Slot) -> str:
    text = " ".join(error.message.split()) if isinstance(error, RelayError) else one_line(error)
    if isinstance(error, ConfigError):
        return text  # it names keys, not values
    return slot.redact(text) if slot.redact is not None else redact_values(text, slot.entry.config)

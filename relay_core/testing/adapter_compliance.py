"""Checks of the rules that the bus relies on an adapter to keep, for any adapter's tests.

::

    async def test_it_keeps_the_rules(server):
        await check_adapter(lambda: MyAdapter(server.url), subject="relay.human.my.chat")

Each check runs on a real bus in a temporary directory and raises a `ComplianceError` that names the broken rule. They
need no test framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relay_core.adapters.interface import Adapter, AdapterContext, AdapterStatus
from relay_core.adapters.registry import private_directory
from relay_core.adapters.validation import read_shape
from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.errors import ConfigError
from relay_core.messages.dead_letter import Code
from relay_core.messages.operator_views import AdapterState
from relay_core.messages.subjects import matches_pattern
from relay_core.rules.bindings import Binding

_SENDER = "relay.compliance.sender"
_POLL_SECS = 0.01


class ComplianceError(AssertionError):
    """An adapter broke a rule."""


@dataclass(frozen=True, slots=True)
class AdapterCase:
    """The adapter under test."""

    make: Callable[[], Adapter]
    """Return a new adapter with the same id each time, for a platform that accepts messages."""
    subject: str
    """A subject that it delivers."""
    payload: Any
    """A payload that its platform accepts."""
    make_failing: Callable[[], Adapter] | None = None
    """Return an adapter for a platform that refuses the message."""
    make_slow: Callable[[], Adapter] | None = None
    """Return an adapter for a platform that does not answer."""
    patience: float = 10.0
    """Seconds that connecting, delivering or stopping may take."""


async def check_adapter(
    make_adapter: Callable[[], Adapter],
    *,
    subject: str,
    payload: Any = None,
    make_failing: Callable[[], Adapter] | None = None,
    make_slow: Callable[[], Adapter] | None = None,
    patience: float = 10.0,
) -> None:
    """Check an adapter against every rule; the parameters are those of `AdapterCase`.

    Raises:
        ComplianceError: at the first broken rule.
    """
    payload = {"content": "compliance check"} if payload is None else payload
    case = AdapterCase(make_adapter, subject, payload, make_failing, make_slow, patience)
    for check in ADAPTER_CHECKS:
        await check(case)


async def check_shape(case: AdapterCase) -> None:
    """Check that it implements Adapter, matches the subject, and is not connected before it is started."""
    adapter, another = case.make(), case.make()
    try:
        shape = read_shape(adapter)
    except ConfigError as error:
        raise ComplianceError(error.message) from error
    require(another is not adapter, "make_adapter must return a new adapter each time")
    require(another.id == adapter.id, "make_adapter must return adapters of the same id")
    takes = any(matches_pattern(case.subject, pattern) for pattern in shape.patterns)
    require(takes, f"none of its patterns {shape.patterns} matches {case.subject}")
    require(adapter.status.state != "connected", "status is connected before start")


async def check_lifecycle(case: AdapterCase) -> None:
    """Check that it connects, announces it, stops, and can be stopped twice, stopped unstarted, and started again."""
    async with running_bus() as relay:
        unstarted = case.make()
        await _within(case, "stop of an adapter that was not started", unstarted.stop())
        adapter = case.make()
        tasks = asyncio.all_tasks()
        for turn in ("start", "start after stop"):
            context = _context(relay, adapter)
            announced: list[str] = []
            context.entered.set()
            context.on_status = lambda announced=announced: announced.append(adapter.status.state)
            await _within(case, turn, adapter.start(context))
            at_once = _status(adapter).state
            require(at_once != "error", f"{turn} left the status error ({_status(adapter).detail}): it must raise")
            await _until(case, lambda: _status(adapter).state == "connected", f"{turn}: its status is not connected")
            was_announced = at_once == "connected" or "connected" in announced
            require(was_announced, f"its status went from {at_once} to connected without context.status_changed()")
            await _within(case, "stop", adapter.stop())
            require(_status(adapter).state != "connected", "status is still connected after stop")
            await _within(case, "a second stop", adapter.stop())
            context.close()
        left = await _leftovers(tasks)
        require(not left, f"it left tasks behind after stop: {', '.join(sorted(left))}")


async def check_delivery(case: AdapterCase) -> None:
    """Check that it delivers a message and returns a `DeliveryResult` with ``ok=True``."""
    async with running_bus() as relay:
        adapter = case.make()
        await _add(case, relay, adapter)
        state = await _publish(case, relay)
        require(state.delivered == 1, f"a delivery that should succeed failed: {state.last_error}")
        await _within(case, "stop after a delivery", relay.remove_adapter(adapter.id))
        require(_status(adapter).state != "connected", "status is still connected after a delivery and a stop")


async def check_failure(case: AdapterCase) -> None:
    """Check that a refusal of its platform is a failed delivery: reported, dead-lettered, never raised."""
    if case.make_failing is None:
        return
    async with running_bus() as relay:
        await _add(case, relay, case.make_failing())
        state = await _publish(case, relay)
        require(state.failed == 1, "a delivery that the platform refused was reported as delivered")
        letters = await relay.dead_letters()
        codes = [letter.code for letter in letters]
        require(codes == [Code.ADAPTER_FAILED], f"a refused delivery must be one dead letter adapter_failed: {codes}")


async def check_stop_during_delivery(case: AdapterCase) -> None:
    """Check that a stop ends the delivery in flight, one way or the other."""
    async with running_bus() as relay:
        adapter = (case.make_slow or case.make)()
        await _add(case, relay, adapter)

        def has_begun() -> bool:
            state = relay.adapters()[0]
            return state.delivered + state.failed > 0 or any(box.claimed for box in relay.mailboxes())

        async def remove() -> None:
            await _until(case, has_begun, "the delivery does not begin")
            await relay.remove_adapter(adapter.id, drain_timeout=0.0)

        publish = relay.publish(case.subject, case.payload, sender=_SENDER)
        await _within(case, "a stop during a delivery", asyncio.gather(publish, remove()))
        require(_status(adapter).state != "connected", "status is still connected after a stop during a delivery")


async def check_echo_guard(case: AdapterCase) -> None:
    """Check that it does not receive a message that it published on one of its subjects."""
    async with running_bus() as relay:
        spied = _Spied(case.make())
        await _add(case, relay, spied)
        await relay.register_endpoint(case.subject)
        require(spied.context is not None, "start was not called with a context")
        assert spied.context is not None
        result = await spied.context.publish(case.subject, case.payload, sender=_SENDER)
        await relay.idle()
        require(result.delivered_to == 1, "its publish does not reach an endpoint")
        require(relay.adapters()[0].delivered == 0, "it received a message that it had published itself")


async def check_replacement(case: AdapterCase) -> None:
    """Check that it can be replaced by an adapter with the same id while it runs."""
    async with running_bus() as relay:
        old, new = case.make(), case.make()
        await _add(case, relay, old)
        await _within(case, "replacement", relay.replace_adapter(new))
        require(_status(old).state != "connected", "status is still connected after it was replaced")
        await _until(case, lambda: relay.adapters()[0].state == "connected", "its replacement does not connect")
        state = await _publish(case, relay)
        require(state.delivered == 1, f"its replacement does not deliver: {state.last_error}")


AdapterCheck = Callable[[AdapterCase], Awaitable[None]]

ADAPTER_CHECKS: tuple[AdapterCheck, ...] = (
    check_shape,
    check_lifecycle,
    check_delivery,
    check_failure,
    check_stop_during_delivery,
    check_echo_guard,
    check_replacement,
)


def require(kept: bool, rule: str) -> None:
    """Require that a rule was kept.

    Raises:
        ComplianceError: if it was not.
    """
    if not kept:
        raise ComplianceError(rule)


@asynccontextmanager
async def running_bus() -> AsyncIterator[RelayCore]:
    """Run a bus in a temporary directory."""
    with TemporaryDirectory(prefix="relay-compliance-") as directory:
        async with RelayCore(Path(directory), RelayConfig(durability="os")) as relay:
            yield relay


class _Spied:
    """An adapter that exposes its context."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self.context: AdapterContext | None = None

    async def start(self, context: AdapterContext) -> None:
        self.context = context
        await self._adapter.start(context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


async def _add(case: AdapterCase, relay: RelayCore, adapter: Any) -> None:
    if getattr(adapter, "bound", False):
        relay.set_bindings([Binding(chat=case.subject, agent=_SENDER, start="both")])
    await _within(case, "start", relay.add_adapter(adapter))
    await _until(case, lambda: relay.adapters()[0].state == "connected", "it does not connect")


async def _publish(case: AdapterCase, relay: RelayCore) -> AdapterState:
    """Publish the message of the case, and return the adapter's state after the delivery."""
    await _within(case, "publish", relay.publish(case.subject, case.payload, sender=_SENDER))
    await _within(case, "deliver", relay.idle())
    return relay.adapters()[0]


async def _within(case: AdapterCase, step: str, work: Awaitable[object]) -> None:
    limit = asyncio.timeout(case.patience)
    try:
        async with limit:
            await work
    except ComplianceError:
        raise
    except Exception as error:
        if limit.expired():
            raise ComplianceError(f"{step}: not done within {case.patience:g} s") from error
        raise ComplianceError(f"{step} raised {type(error).__name__}: {error}") from error


async def _until(case: AdapterCase, holds: Callable[[], bool], problem: str) -> None:
    for _ in range(max(round(case.patience / _POLL_SECS), 1)):
        if holds():
            return
        await asyncio.sleep(_POLL_SECS)
    require(holds(), f"{problem} within {case.patience:g} s")


async def _leftovers(before: set[asyncio.Task[Any]]) -> set[str]:
    for _ in range(3):  # a task that has just been cancelled may still be ending
        await asyncio.sleep(0)
    return {task.get_name() for task in asyncio.all_tasks() - before}


def _context(relay: RelayCore, adapter: Adapter) -> AdapterContext:
    directory = private_directory(relay.bus.data_dir.path / "adapters" / adapter.id)
    return AdapterContext(relay.bus.adapters.services, adapter.id, directory)


def _status(adapter: Adapter) -> AdapterStatus:
    status: object = adapter.status
    if not isinstance(status, AdapterStatus):
        raise ComplianceError(f"status must be an AdapterStatus, not {type(status).__name__}")
    return status

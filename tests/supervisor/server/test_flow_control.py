"""How connections share the loop: costly requests, however many and from however many clients, let cheap ones pass.

The clock moves only by what a request costs, so what happens in which order does not depend on the machine.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay_core.journal.commit import PublishBatch
from relay_core.protocol.frames import Request
from relay_core.tasks import Tasks
from relay_supervisor.server import connection as connection_module
from relay_supervisor.server import flow_control
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.flow_control import COSTLY_SECS, FairTurns, QueuedTurn, TimeDebt
from relay_supervisor.server.identity import Identity
from relay_supervisor.server.output import FlushQueue
from tests.kit.raw_client import Raw

GREEDY = 10
BACKLOG = 5


class Time:
    """Time that passes when it is said to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(flow_control, "perf_counter", found)
    monkeypatch.setattr(connection_module, "perf_counter", found)
    monkeypatch.setattr(connection_module, "thread_time", found)
    return found


class Costs:
    """A service whose requests are called after the time that they take, such as ``0.01``."""

    def __init__(self, time: Time) -> None:
        self.tasks = Tasks()
        self.turns = FairTurns()
        self.output = FlushQueue()
        self.greeting: dict[str, Any] = {}
        self.begun: list[str] = []
        self._time = time

    def batch(self) -> PublishBatch:
        return PublishBatch()

    def identify(self, connection: Connection) -> Identity | str:
        return Identity(operator=True)

    def answer(self, connection: Connection, request: Request) -> Any:
        self.begun.append(request.method)
        self._time.now += float(request.method)
        return {}

    def disconnected(self, connection: Connection) -> None:
        pass


@asynccontextmanager
async def served(service: Costs) -> AsyncIterator[Callable[[], Raw]]:
    """Serve a socket, and yield what makes a client of it."""
    with tempfile.TemporaryDirectory(prefix="relay-") as place:
        path = Path(place) / "s"
        server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(service), str(path))
        async with server:
            yield lambda: Raw(path)


async def test_a_cheap_request_passes_the_backlog_of_many_costly_connections(time: Time) -> None:
    service = Costs(time)
    async with served(service) as client, AsyncExitStack() as stack:
        cheap = await stack.enter_async_context(client())
        await cheap.call("0")
        greedy = [await stack.enter_async_context(client()) for _ in range(GREEDY)]
        for raw in greedy:
            for _ in range(BACKLOG):
                raw.ask("0.01")
        for raw in greedy:
            await raw.frame()  # all of them are ahead of their share now, and have more to ask for
        before = len(service.begun)
        await cheap.call("0")
        between = service.begun[before:].index("0")
        assert between <= 3  # of GREEDY connections that each have a request waiting
        for raw in greedy:
            for _ in range(BACKLOG - 1):
                assert "result" in (await raw.frame() or {})
    assert service.begun.count("0.01") == GREEDY * BACKLOG


async def test_a_costly_turn_begins_one_request(time: Time) -> None:
    service = Costs(time)
    async with served(service) as client, client() as first, client() as second:
        for raw in (first, second):
            raw.ask("0.01")  # it is ahead of its share from now on
            await raw.frame()
        for name, raw in (("0.001", first), ("0.002", second)):
            for _ in range(4):
                raw.ask(name)
        for raw in (first, second):
            for _ in range(4):
                await raw.frame()
    assert service.begun[2:] == ["0.001", "0.002"] * 4


async def test_cheap_requests_are_not_held_against_a_connection_however_many(time: Time) -> None:
    class NoTurns(FairTurns):
        def wait(self, turn: Callable[[], None]) -> QueuedTurn:
            raise AssertionError("it waits behind the costly ones")

    service = Costs(time)
    service.turns = NoTurns()
    async with served(service) as client, client() as busy:
        for _ in range(200):
            busy.ask(f"{COSTLY_SECS / 2}")
        for _ in range(200):
            assert "result" in (await busy.frame() or {})


def test_a_debt_is_paid_by_waiting(time: Time) -> None:
    debt, found = TimeDebt(), []
    for used, waited in ((0.003, 0.0), (0.010, 0.0), (0.0, 0.040), (0.0, 0.010)):
        debt.add(used)
        time.now += waited
        found.append(debt.is_due)
    # The first is what may be used at once; then a fifth of the time counts.
    assert found == [False, True, True, False]


def test_one_very_long_request_is_not_held_against_it_for_ever(time: Time) -> None:
    debt = TimeDebt()
    debt.add(3600.0)
    time.now += 5.0
    assert not debt.is_due

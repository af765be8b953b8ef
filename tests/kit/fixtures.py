"""The fixtures that all tests share. A pytest plugin.

- `data_dir` and `clock`: a fresh directory, and a clock that the test advances.
- `relay`: a bus in the test's process. In a test that also has `supervisor`, it is that supervisor's bus.
- `supervisor`: a supervisor in the test's process, on the real clock. `client`, `wired`, `operator` and `agent` are
  connected to it.
- `daemon`: a supervisor in a process, for tests that signal it or use it from programs.

The marker `bus` of a test or a module configures the bus of the last three:
``pytestmark = pytest.mark.bus(config, endpoints=[A, B])``. Without it, no limit is reached and there is no endpoint.
A module that needs another clock defines `clock` itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from relay_core import RelayCore
from relay_core.client.client import RelayClient
from relay_core.testing import FakeClock
from relay_supervisor.supervisor import Supervisor
from tests.kit.bus import UNLIMITED, A, a_bus
from tests.kit.daemon import Daemon, a_daemon
from tests.kit.raw_client import Raw, authenticate
from tests.kit.servers.proxy import Wire, a_wire
from tests.kit.supervisor import a_client, a_supervisor


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a fresh data directory that only its owner can enter."""
    path = tmp_path / "relay"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that moves only when the test advances it."""
    return FakeClock()


@pytest.fixture
def relay(request: pytest.FixtureRequest) -> RelayCore:
    """Return the bus of `supervisor` if the test has one, or else a bus on `clock`."""
    if "supervisor" in request.fixturenames:
        supervisor: Supervisor = request.getfixturevalue("supervisor")
        return supervisor.context.relay
    bus: RelayCore = request.getfixturevalue("_bus")
    return bus


@pytest.fixture
async def _bus(data_dir: Path, clock: FakeClock, request: pytest.FixtureRequest) -> AsyncIterator[RelayCore]:
    config, endpoints = marked(request)
    async with a_bus(data_dir, clock, config, endpoints=endpoints) as relay:
        yield relay


@pytest.fixture
async def supervisor(data_dir: Path, request: pytest.FixtureRequest) -> AsyncIterator[Supervisor]:
    """Run a supervisor on the real clock."""
    config, endpoints = marked(request)
    async with a_supervisor(data_dir, config) as supervisor:
        for subject in endpoints:
            await supervisor.context.relay.register_endpoint(subject)
        yield supervisor


@pytest.fixture
async def client(supervisor: Supervisor) -> AsyncIterator[RelayClient]:
    """Return a connected client."""
    async with a_client(supervisor) as client:
        yield client


@pytest.fixture
async def wired(supervisor: Supervisor) -> AsyncIterator[tuple[RelayClient, Wire]]:
    """Return a client whose connection can be cut."""
    async with a_wire(supervisor.socket) as (path, wire), RelayClient(path, timeout=20) as client:
        yield client, wire


@pytest.fixture
async def operator(supervisor: Supervisor) -> AsyncIterator[Raw]:
    """Return a raw connection that may do everything."""
    async with Raw(supervisor.socket) as raw:
        yield raw


@pytest.fixture
async def agent(supervisor: Supervisor, operator: Raw) -> AsyncIterator[Raw]:
    """Return a raw connection that has a token for `A`."""
    async with Raw(supervisor.socket) as raw:
        await authenticate(raw, operator, A)
        yield raw


@pytest.fixture
async def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Daemon]:
    """Run a supervisor in a process."""
    config, endpoints = marked(request, default=None)
    async with a_daemon(tmp_path, config) as daemon:
        if endpoints:
            async with daemon.client() as client:
                for subject in endpoints:
                    await client.register_endpoint(subject)
        yield daemon


def marked(request: pytest.FixtureRequest, default: Any = UNLIMITED) -> tuple[Any, list[str]]:
    """Return the configuration and the endpoints that the marker `bus` names."""
    marker = request.node.get_closest_marker("bus")
    if marker is None:
        return default, []
    (config,) = marker.args or (default,)
    return config, marker.kwargs.get("endpoints", [])

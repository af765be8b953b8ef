"""A supervisor inside the test's own process: real files and a real socket, and a clock that can be chosen."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from relay_core.client import RelayClient
from relay_core.clock import Clock
from relay_core.config import RelayConfig, merge_config
from relay_supervisor.supervisor import Supervisor
from tests.supervisor.daemon import UNLIMITED

PATIENCE_SECS = 30.0


@asynccontextmanager
async def a_supervisor(
    data_dir: Path, config: Mapping[str, Any] | None = None, clock: Clock | None = None
) -> AsyncIterator[Supervisor]:
    """Run a supervisor; its socket has a short path, wherever the data is."""
    sockets = Path(tempfile.mkdtemp(prefix="relay-"))
    chosen = merge_config(RelayConfig(), dict(UNLIMITED if config is None else config))
    try:
        async with Supervisor(data_dir, sockets / "relay.sock", config=chosen, clock=clock) as supervisor:
            yield supervisor
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def a_client(supervisor: Supervisor, **options: Any) -> RelayClient:
    """Return a client that is not connected yet."""
    return RelayClient(supervisor.socket, data_dir=supervisor.services.relay.bus.data_dir.path, **options)


async def until(condition: Callable[[], Any]) -> None:
    """Return once a condition holds; for what another task or process does."""
    async with asyncio.timeout(PATIENCE_SECS):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)

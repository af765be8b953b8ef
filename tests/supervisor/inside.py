"""A supervisor inside the test's own process: real files and a real socket, and a clock that can be chosen."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

from relay_core.client import RelayClient
from relay_core.clock import Clock
from relay_core.config import RelayConfig, merge_config
from relay_supervisor.supervisor import Supervisor
from tests.supervisor.daemon import UNLIMITED

PATIENCE_SECS = 60.0


@asynccontextmanager
async def a_supervisor(
    data_dir: Path, config: RelayConfig | Mapping[str, Any] = UNLIMITED, clock: Clock | None = None
) -> AsyncIterator[Supervisor]:
    """Run a supervisor; its socket has a short path, wherever the data is."""
    sockets = Path(tempfile.mkdtemp(prefix="relay-"))
    chosen = config if isinstance(config, RelayConfig) else merge_config(RelayConfig(), dict(config))
    try:
        async with Supervisor(data_dir, sockets / "relay.sock", config=chosen, clock=clock) as supervisor:
            yield supervisor
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def a_client(supervisor: Supervisor, **options: Any) -> RelayClient:
    """Return a client that is not connected yet."""
    return RelayClient(supervisor.socket, data_dir=supervisor.services.relay.bus.data_dir.path, **options)


async def until(condition: Callable[[], Any]) -> None:
    """Return once a condition holds, or what it is awaited for; for what another task or process does."""
    async with asyncio.timeout(PATIENCE_SECS):
        while True:
            found = condition()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)

"""A supervisor in the test's own process: real files, a real socket, and a clock of the test's choice.

It starts in hundredths of a second, a `Daemon` in most of one. Use it unless the test kills or signals the supervisor,
measures it, or blocks the event loop.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.clock import Clock
from relay_core.config import RelayConfig, merge_config
from relay_supervisor.supervisor import Supervisor
from tests.kit.daemon import UNLIMITED, Site


@asynccontextmanager
async def a_supervisor(
    data_dir: Path, config: RelayConfig | Mapping[str, Any] | None = UNLIMITED, clock: Clock | None = None
) -> AsyncIterator[Supervisor]:
    """Run a supervisor; its socket has a short path, wherever the data is. Without `config` it reads config.json."""
    sockets = Path(tempfile.mkdtemp(prefix="relay-"))
    chosen = merge_config(RelayConfig(), dict(config)) if isinstance(config, Mapping) else config
    try:
        async with Supervisor(data_dir, sockets / "relay.sock", config=chosen, clock=clock) as supervisor:
            yield supervisor
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


@asynccontextmanager
async def a_site(data_dir: Path, config: Mapping[str, Any] = UNLIMITED) -> AsyncIterator[Site]:
    """Run a supervisor for tests that could as well have a `Daemon`, but neither signal it nor block the loop."""
    async with a_supervisor(data_dir, config) as supervisor:
        yield Site(data_dir, supervisor.socket)


def a_client(supervisor: Supervisor, **options: Any) -> RelayClient:
    """Return a client that is not connected yet."""
    return RelayClient(supervisor.socket, data_dir=supervisor.context.relay.bus.data_dir.path, **options)

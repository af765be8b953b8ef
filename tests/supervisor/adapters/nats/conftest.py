from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.servers.nats import NatsServer, running_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Return a server with JetStream and nothing in it."""
    async with running_server(tmp_path / "server") as server:
        yield server

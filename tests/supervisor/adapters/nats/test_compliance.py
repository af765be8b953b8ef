"""The rules that every adapter keeps."""

from __future__ import annotations

import pytest
from nats.js.api import StreamConfig

from relay_core.testing import check_adapter
from relay_supervisor.adapters.nats.adapter import NatsAdapter
from tests.kit.servers.nats import NatsServer, StuckProxy, config


@pytest.mark.parametrize("lanes", [1, 8])
async def test_it_keeps_the_rules_of_every_adapter(server: NatsServer, lanes: int) -> None:
    async with server.client() as client:
        await client.jetstream().add_stream(StreamConfig(name="TINY", subjects=["tiny.>"], max_msg_size=10))
    async with StuckProxy(server.port).running() as proxy:

        def slow() -> NatsAdapter:
            proxy.stuck.clear()
            return NatsAdapter("nats", config(proxy, lanes=lanes))

        await check_adapter(
            lambda: NatsAdapter("nats", config(server, lanes=lanes)),
            subject="relay.agent.x",
            make_failing=lambda: NatsAdapter("nats", config(server, stream="TINY", prefix="tiny", lanes=lanes)),
            make_slow=slow,
        )

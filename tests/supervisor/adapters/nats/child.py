"""A relay with a bridge in a separate process, to be killed: DATA_DIR CONFIG.

It takes orders from stdin: ``publish SUBJECT JSON`` publishes. It says ``ready`` once the bridge is connected.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson

from relay_core import RelayCore
from relay_supervisor.adapters.nats.adapter import NatsAdapter
from relay_supervisor.adapters.nats.config import NatsConfig
from tests.kit.servers.nats import RELAXED
from tests.kit.waiting import until


async def main(data_dir: Path, config: NatsConfig) -> None:
    async with RelayCore(data_dir, RELAXED) as relay:
        await relay.register_endpoint("relay.agent.x")
        await relay.add_adapter(NatsAdapter("nats", config))
        await until(lambda: relay.adapters()[0].state == "connected")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            _, subject, payload = line.split(maxsplit=2)
            await relay.publish(subject, orjson.loads(payload), sender="relay.agent.a")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), NatsConfig.model_validate(orjson.loads(sys.argv[2]))))

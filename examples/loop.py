"""Two polite agents that thank each other endlessly, the budget that stops them, and what the operator sees.

Run: python examples/loop.py
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from relay_core import RelayClient
from relay_supervisor.supervisor import Supervisor

ANN, BOB = "relay.agent.ann", "relay.agent.bob"


async def thank(client: RelayClient, me: str) -> None:
    """Answer every message: two such agents make a loop."""
    async with client.subscribe(me) as messages:
        async for envelope in messages:
            thanks = {"content": f"thank you for {envelope.payload['content']!r}"[:60]}
            result = await client.publish(envelope.sender, thanks, sender=me, parent_id=envelope.id)
            if not result.delivered_to:
                print(f"{me} is stopped: {result.rejected[0].reason if result.rejected else 'no such endpoint'}")
                return
            print(f"{me} answered")


async def operator_sees(data_dir: str, socket: Path, *command: str) -> None:
    print(f"\n$ relay {' '.join(command)}", flush=True)
    relay = [sys.executable, "-m", "relay_supervisor.cli", *command, "--data-dir", data_dir, "--socket", str(socket)]
    shown = await asyncio.create_subprocess_exec(*relay)
    await shown.wait()


async def main(data_dir: str) -> None:
    async with Supervisor(data_dir) as supervisor, RelayClient(supervisor.socket, data_dir=data_dir) as client:
        for subject in (ANN, BOB):
            await client.register_endpoint(subject)
        async with asyncio.TaskGroup() as agents:
            loops = [agents.create_task(thank(client, subject)) for subject in (ANN, BOB)]
            first = await client.publish(BOB, {"content": "the report"}, sender=ANN)
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                loop.cancel()
        await operator_sees(data_dir, supervisor.socket, "dlq", "list")
        await operator_sees(data_dir, supervisor.socket, "trace", first.message_id, "--conversation")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

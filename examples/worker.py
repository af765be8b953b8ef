"""A worker that pulls its messages, and an operator who edits and replays the one that failed.

Run: python examples/worker.py
"""

from __future__ import annotations

import asyncio
import tempfile

from relay_core import RelayConfig, RelayCore

WORKER = "relay.agent.worker"


async def main(data_dir: str) -> None:
    async with RelayCore(data_dir, config=RelayConfig(durability="os")) as relay:
        await relay.register_endpoint(WORKER)
        for number in (3, 0, 5):
            await relay.publish(WORKER, {"divide": 15, "by": number}, sender="relay.agent.boss")

        while claimed := await relay.claim(WORKER):
            (envelope,) = claimed
            try:
                print(f"15 / {envelope.payload['by']} = {envelope.payload['divide'] / envelope.payload['by']}")
            except ZeroDivisionError as error:
                await relay.fail(WORKER, envelope.id, str(error))
            else:
                await relay.complete(WORKER, envelope.id)

        (letter,) = await relay.dead_letters()
        print(f"dead letter: {letter.reason}")
        result = await relay.replays.edit(letter.message_id, {"divide": 15, "by": 1})
        (envelope,) = await relay.claim(WORKER)
        print(f"replayed with {envelope.payload}")
        await relay.complete(WORKER, envelope.id)
        assert (envelope.id, envelope.replay_of) == (result.message_id, letter.message_id), (
            "an edited copy has a new id"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

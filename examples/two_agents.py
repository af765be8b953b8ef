"""Two agents hand work to each other; the budget stops them when they would go on for ever.

Run: python examples/two_agents.py
"""

from __future__ import annotations

import asyncio
import tempfile

from relay_core import BudgetConfig, Envelope, RelayConfig, RelayCore

WRITER, REVIEWER = "relay.agent.writer", "relay.agent.reviewer"


async def main(data_dir: str) -> None:
    config = RelayConfig(durability="os", budget=BudgetConfig(max_hops=4))
    async with RelayCore(data_dir, config=config) as relay:
        for subject in (WRITER, REVIEWER):
            await relay.register_endpoint(subject)

        async def write(envelope: Envelope) -> None:
            await answer(WRITER, REVIEWER, envelope, "a new draft")

        async def review(envelope: Envelope) -> None:
            await answer(REVIEWER, WRITER, envelope, "please change it")

        async def answer(me: str, other: str, envelope: Envelope, text: str) -> None:
            print(f"{me} got {envelope.payload['content']!r}")
            # Naming the parent makes the answer part of the conversation: it inherits what is left of the budget.
            await relay.publish(other, {"content": text}, sender=me, parent_id=envelope.id)

        await relay.subscribe(WRITER, write)
        await relay.subscribe(REVIEWER, review)
        first = await relay.publish(REVIEWER, {"content": "the first draft"}, sender=WRITER)
        await relay.idle()

        for letter in await relay.dead_letters():
            print(f"stopped: {letter.reason}")
        for span in await relay.conversation(first.message_id):
            print(f"{span.sender} -> {span.target_subject}: {span.status}, {span.calls_after} calls left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

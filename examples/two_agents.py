"""Two scripted agents on a real supervisor: a planner gives work to a coder, who asks a question before it answers.

Each has its own token, so neither can publish as the other. Run: python examples/two_agents.py
"""

from __future__ import annotations

import asyncio
import tempfile

from relay_core import RelayClient
from relay_supervisor.supervisor import Supervisor

PLANNER, CODER = "relay.agent.planner", "relay.agent.coder"


async def planner(client: RelayClient) -> None:
    """Answer questions about the plan."""
    async for envelope in client.subscribe(PLANNER):
        print(f"planner is asked: {envelope.payload['content']}")
        await client.publish(
            envelope.reply_to or envelope.sender, {"content": "Python 3.11"}, sender=PLANNER, parent_id=envelope.id
        )


async def coder(client: RelayClient) -> None:
    """Ask a question, then do the work; each message is acknowledged when the loop asks for the next."""
    async for envelope in client.subscribe(CODER):
        print(f"coder is asked: {envelope.payload['content']}")
        # With its parent named, the question inherits the remaining budget of the conversation.
        answer = await client.request(PLANNER, {"content": "which Python?"}, sender=CODER, parent_id=envelope.id)
        done = {"content": f"done, for {answer.payload['content']}"}
        await client.publish(envelope.reply_to or envelope.sender, done, sender=CODER, parent_id=envelope.id)


async def main(data_dir: str) -> None:
    async with Supervisor(data_dir) as supervisor, RelayClient(supervisor.socket, data_dir=data_dir) as operator:
        tokens = {name: (await operator.add_agent(name)).token for name in (PLANNER, CODER)}
        async with (
            RelayClient(supervisor.socket, data_dir=data_dir, token=tokens[PLANNER]) as planning,
            RelayClient(supervisor.socket, data_dir=data_dir, token=tokens[CODER]) as coding,
            asyncio.TaskGroup() as agents,
        ):
            loops = [agents.create_task(planner(planning)), agents.create_task(coder(coding))]
            answer = await planning.request(CODER, {"content": "write the parser"}, sender=PLANNER)
            print(f"planner hears from {answer.sender}: {answer.payload['content']}")
            for loop in loops:
                loop.cancel()

        for span in await operator.conversation(answer.trace_id or answer.id):
            to = "the requester" if span.target_subject.startswith("relay.reply.") else span.target_subject
            print(f"{span.sender} -> {to}: {span.calls_after} calls left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

"""Dead letters for tests: made on a real supervisor, each for a reason of its own."""

from __future__ import annotations

from typing import Any

from relay_core.client.client import RelayClient

FLAKY = "relay.agent.flaky"
MAILROOM = "relay.agent.mailroom"
UNREACHABLE = "relay.agent.nobody"
SENDER = "relay.agent.shop"


async def refused(client: RelayClient, subject: str, count: int = 1, *, reason: str = "no stock", **body: Any) -> None:
    """Let a consumer refuse messages: dead letters that a replay can deliver."""
    await client.register_endpoint(subject)
    made = [{"subject": subject, "payload": {"n": n, **body}, "sender": SENDER} for n in range(count)]
    await client.publish_many(made)
    left = count
    while left:
        for envelope in await client.claim(subject, min(left, 100)):
            await client.fail(subject, envelope.id, reason)
            left -= 1


async def astray(client: RelayClient, count: int = 1, subject: str = UNREACHABLE) -> None:
    """Write to nobody: dead letters that a replay cannot deliver."""
    made = [{"subject": subject, "payload": {"n": n}, "sender": "relay.desk.ada"} for n in range(count)]
    await client.publish_many(made)


async def ids(client: RelayClient) -> list[str]:
    """Return the ids of all dead letters, newest first."""
    return [letter.message_id for letter in await client.dead_letters()][::-1]

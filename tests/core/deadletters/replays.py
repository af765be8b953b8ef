"""Dead letters to replay, and runs that replay them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from relay_core import BackpressureConfig, CircuitBreakerConfig, RelayConfig, RelayCore, ReplayPlan
from relay_core.deadletters.replay_run import ReplayRun
from tests.kit import bus
from tests.kit.adapters import SampleAdapter, refuse
from tests.kit.bus import SENDER, A, dead_ids
from tests.kit.handlers import Listener

FULL = 50
"""How many messages fill a mailbox here."""


def config(durability: str = "os", **reliability: Any) -> RelayConfig:
    """Return a configuration without breakers, where a mailbox is soon full."""
    sections: dict[str, Any] = {
        "circuit_breaker": CircuitBreakerConfig(enabled=False),
        "backpressure": BackpressureConfig(max_mailbox_size=FULL),
    }
    return bus.config(durability, **(sections | reliability))


async def dead(relay: RelayCore, *payloads: Any, subject: str = A, **options: Any) -> list[str]:
    """Make dead letters that a pull consumer has failed."""
    ids = []
    for payload in payloads:
        result = await relay.publish(subject, payload, sender=SENDER, **options)
        await relay.claim(subject)
        await relay.fail(subject, result.message_id, "no")
        ids.append(result.message_id)
    return ids


def failed_files(relay: RelayCore) -> int:
    (state,) = [state for state in relay.mailboxes() if state.subject == A]
    return state.failed


async def start(relay: RelayCore, **options: Any) -> ReplayRun:
    return relay.replays.start((await relay.plan_replay()).id, **options)


def verdicts(plan: ReplayPlan) -> dict[str, str]:
    return {item.message_id: item.verdict for item in plan.items}


def places(data_dir: Path, message_id: str) -> list[str]:
    """Return the directories that hold a message, over all mailboxes."""
    return [path.parent.name for path in sorted((data_dir / "mailboxes").glob(f"*/*/{message_id}.json"))]


async def failed_at_adapter(relay: RelayCore) -> str:
    """Have an adapter fail a message; return its id."""
    await relay.add_adapter(SampleAdapter(platform=refuse))
    return (await relay.publish("relay.out.x", 1, sender=SENDER)).message_id


async def dead_by_handler(relay: RelayCore, listener: Listener, count: int) -> list[str]:
    """Have a handler fail messages; return their ids."""
    listener.fails = True
    ids = [(await relay.publish(A, number, sender=SENDER)).message_id for number in range(count)]
    await relay.idle()
    listener.fails = False
    listener.envelopes.clear()
    assert await dead_ids(relay) == ids
    return ids


async def let_run() -> None:
    """Let tasks and threads run for a moment, before a test asserts that nothing has happened."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def acknowledge(relay: RelayCore, *, fails: bool = False) -> list[Any]:
    """Claim every waiting message and complete or fail it; return the payloads."""
    claimed = await relay.claim(A, limit=100)
    for envelope in claimed:
        await (relay.fail(A, envelope.id, "no") if fails else relay.complete(A, envelope.id))
    return [envelope.payload for envelope in claimed]

"""RelayCore without `async with`, and the order of publishes that are started together."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from relay_core import Closed, Envelope, RelayConfig, RelayCore
from relay_core.journal.journal import Durability
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, UNLIMITED, A

MANY = 100
"""More than a publisher in a loop may publish before others run."""


async def test_start_and_close_do_what_async_with_does(data_dir: Path, clock: FakeClock) -> None:
    relay = RelayCore(data_dir, RelayConfig(durability="os"), clock)
    await relay.start()
    await relay.start()  # it is running already
    await relay.register_endpoint(A)
    await relay.publish(A, 1, sender=SENDER)
    await relay.close()
    await relay.close()
    async with RelayCore(data_dir, RelayConfig(durability="os"), clock) as again:
        assert [envelope.payload for envelope in await again.inbox(A)] == [1]


async def test_every_verb_of_a_closed_bus_raises_closed(data_dir: Path, clock: FakeClock) -> None:
    relay = RelayCore(data_dir, RelayConfig(durability="os"), clock)
    verbs: dict[str, Callable[[], object]] = {
        "publish": lambda: relay.publish(A, 1, sender=SENDER),
        "register_endpoint": lambda: relay.register_endpoint(A),
        "subscribe": lambda: relay.subscribe(A, print),
        "inbox": lambda: relay.inbox(A),
        "claim": lambda: relay.claim(A),
        "dead_letters": relay.dead_letters,
        "plan_replay": relay.plan_replay,
        "trace": lambda: relay.trace("x"),
        "idle": relay.idle,
        "metrics": relay.metrics,
        "mailboxes": relay.mailboxes,
        "endpoints": relay.endpoints,
        "on_signal": lambda: relay.on_signal(A, print),
    }

    async def call(name: str) -> None:
        outcome = verbs[name]()
        if inspect.isawaitable(outcome):
            await outcome

    for _ in ("not started", "closed"):
        for name in verbs:
            with pytest.raises(Closed, match=r"call start\(\)"):
                await call(name)
        await relay.start()
        await relay.close()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("registered", [True, False], ids=["endpoint", "subscription"])
async def test_publishes_started_together_keep_their_order(
    data_dir: Path, durability: Durability, registered: bool
) -> None:
    seen: list[int] = []

    async def handle(envelope: Envelope) -> None:
        seen.append(envelope.payload)

    async with RelayCore(data_dir, UNLIMITED.model_copy(update={"durability": durability})) as relay:
        if registered:
            await relay.register_endpoint(A)
        await relay.subscribe(A, handle)
        results = await asyncio.gather(*(relay.publish(A, number, sender=SENDER) for number in range(MANY)))
        await relay.idle()
        ids = [result.message_id for result in results]
        assert ids == sorted(ids)
        assert seen == list(range(MANY))


async def test_a_publisher_in_a_loop_lets_others_run(data_dir: Path) -> None:
    async with RelayCore(data_dir, UNLIMITED.model_copy(update={"durability": "os"})) as relay:
        await relay.register_endpoint(A)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            counting = group.create_task(count())
            for number in range(MANY):
                await relay.publish(A, number, sender=SENDER)
            counting.cancel()
        assert turns > 3

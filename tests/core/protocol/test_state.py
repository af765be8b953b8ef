"""What operators see of mailboxes and breakers is what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.config import BackpressureConfig, CircuitBreakerConfig, ReliabilityConfig
from relay_core.messages.envelope import Envelope
from relay_core.messages.subjects import subject_hash
from relay_core.protocol.state import MailboxState
from relay_core.rules.breaker import CircuitState
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B

CONFIG = RelayConfig(
    durability="os",
    reliability=ReliabilityConfig(
        backpressure=BackpressureConfig(max_mailbox_size=10), circuit_breaker=CircuitBreakerConfig(failure_threshold=2)
    ),
)

pytestmark = pytest.mark.bus(CONFIG, endpoints=[B, A])


def state_of(relay: RelayCore, subject: str) -> MailboxState:
    return next(state for state in relay.mailboxes() if state.subject == subject)


async def test_an_empty_mailbox(relay: RelayCore) -> None:
    assert [state.subject for state in relay.mailboxes()] == [A, B]
    assert state_of(relay, A).to_wire() == {
        "subject": A,
        "hash": subject_hash(A),
        "kind": "endpoint",
        "registered": True,
        "depth": 0,
        "claimed": 0,
        "failed": 0,
        "pressure": 0,
        "consumers": 0,
    }


async def test_every_message_is_counted_where_it_is(relay: RelayCore, clock: FakeClock, data_dir: Path) -> None:
    for _ in range(5):
        await relay.publish(A, 1, sender=SENDER)
        clock.advance(1)
    first, second = await relay.claim(A, limit=2)
    await relay.fail(A, first.id, "no")
    state = state_of(relay, A)
    assert (state.depth, state.claimed, state.failed, state.pressure) == (3, 1, 1, 0.3)
    assert state.oldest_ms == 3000
    await relay.complete(A, second.id)
    assert state_of(relay, A).claimed == 0
    await relay.idle()
    for name, count in (("new", 3), ("cur", 0), ("failed", 1)):
        assert len(list((data_dir / "mailboxes" / subject_hash(A) / name).iterdir())) == count


async def test_counts_are_right_after_a_restart_and_a_purge(data_dir: Path, clock: FakeClock) -> None:
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(A)
        for _ in range(4):
            await relay.publish(A, 1, sender=SENDER)
        await relay.claim(A, limit=2)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        state = state_of(relay, A)
        assert (state.depth, state.claimed, state.failed) == (2, 0, 2)
        assert await relay.purge_dead_letters() == 2
        assert state_of(relay, A).failed == 0


async def test_consumers_are_those_who_would_handle_its_mail(relay: RelayCore) -> None:
    async def handle(envelope: Envelope) -> None: ...

    one = await relay.subscribe(A, handle)
    await relay.subscribe("relay.agent.*", handle)
    assert [state.consumers for state in relay.mailboxes()] == [2, 1]
    await one.close()
    assert [state.consumers for state in relay.mailboxes()] == [1, 1]
    await relay.unregister_endpoint(A)
    assert (state_of(relay, A).consumers, state_of(relay, A).registered) == (1, False)  # its mail is still heard


async def test_a_clock_that_went_back_makes_no_message_younger_than_now(relay: RelayCore, clock: FakeClock) -> None:
    await relay.publish(A, 1, sender=SENDER)
    clock.jump_wall(-3600)
    assert state_of(relay, A).oldest_ms == 0


async def test_a_subject_that_only_has_dead_letters_is_no_endpoint_and_has_no_breaker(relay: RelayCore) -> None:
    await relay.publish("relay.agent.nobody", 1, sender=SENDER)
    state = state_of(relay, "relay.agent.nobody")
    assert (state.kind, state.registered, state.failed) == ("none", False, 1)
    assert "relay.agent.nobody" not in [breaker.subject for breaker in relay.breakers()]


async def test_breakers_say_whose_they_are_and_how_they_stand(relay: RelayCore) -> None:
    async def fail(envelope: Envelope) -> None:
        raise ValueError

    await relay.subscribe(A, fail)
    for _ in range(2):
        await relay.publish(A, 1, sender=SENDER)
        await relay.idle()
    found = {breaker.subject: breaker for breaker in relay.breakers()}
    assert found[A].state is CircuitState.OPEN
    relay.reset_breaker(A)
    assert {breaker.subject: breaker.state for breaker in relay.breakers()}[A] is CircuitState.CLOSED
    relay.force_breaker(subject_hash(B), CircuitState.OPEN, "maintenance")
    assert {breaker.subject: breaker.state for breaker in relay.breakers()}[B] is CircuitState.OPEN

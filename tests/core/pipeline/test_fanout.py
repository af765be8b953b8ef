"""What a publish to adapters means: seed 003's dead-letter table, and answers that come late or never."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from relay_core import CircuitState, DeliveryContext, DeliveryResult, Envelope, RelayConfig, RelayCore
from relay_core.testing import FakeClock
from tests.kit.adapters import Gate, Platform, SampleAdapter, accept, explode, hang, refuse
from tests.kit.waiting import until

SUBJECT = "relay.out.chat"
SENDER = "relay.agent.a"
CONFIG = RelayConfig(durability="os")

pytestmark = pytest.mark.bus(CONFIG)


@dataclass(frozen=True)
class Row:
    mailbox: bool
    platforms: tuple[Platform, ...]
    delivered_to: int
    """Of the publish."""
    adapters: tuple[str, ...]
    """Status of each adapter's result."""
    letters: tuple[str, ...] = ()
    """Codes of the dead letters."""
    aside: tuple[str, ...] = ()
    """Codes of the copies kept aside."""


TABLE = {
    "no mailbox, no adapter": Row(False, (), 0, (), letters=("no_match",)),
    "no mailbox, adapter matches": Row(False, (accept,), 1, ("delivered",)),
    "mailbox matches, no adapter": Row(True, (), 1, ()),
    "mailbox and adapter both match": Row(True, (accept,), 2, ("delivered",)),
    "mailbox matches, adapter fails": Row(True, (explode,), 1, ("failed",), aside=("adapter_failed",)),
    "no mailbox, adapter fails": Row(False, (explode,), 0, ("failed",), letters=("adapter_failed",)),
    "no mailbox, adapter refuses": Row(False, (refuse,), 0, ("failed",), letters=("adapter_failed",)),
    "no mailbox, two adapters match": Row(False, (accept, accept), 2, ("delivered", "delivered")),
    "one of two adapters fails": Row(False, (accept, explode), 1, ("delivered", "failed"), aside=("adapter_failed",)),
    "both adapters fail": Row(
        False, (refuse, explode), 0, ("failed", "failed"), letters=("adapter_failed", "adapter_failed")
    ),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE.keys())
async def test_the_dead_letter_table(row: Row, relay: RelayCore) -> None:
    if row.mailbox:
        await relay.register_endpoint(SUBJECT)
    for number, platform in enumerate(row.platforms):
        await relay.add_adapter(SampleAdapter(f"adapter{number}", platform=platform))
    result = await relay.publish(SUBJECT, {"content": "hi"}, sender=SENDER)
    assert result.delivered_to == row.delivered_to
    assert result.rejected is None
    results = sorted(result.adapter_results or (), key=lambda adapter: adapter.adapter_id)
    assert tuple(adapter.status for adapter in results) == row.adapters
    letters = await relay.dead_letters(include_partial=True)
    assert tuple(letter.code for letter in letters if not letter.partial) == row.letters
    assert tuple(letter.code for letter in letters if letter.partial) == row.aside
    if row.mailbox:
        assert [envelope.id for envelope in await relay.inbox(SUBJECT)] == [result.message_id]
    traced = [span.status for span in await relay.trace(result.message_id) if span.target_kind == "adapter"]
    statuses = {"delivered": "done", "failed": "partial_failure" if row.aside else "failed"}
    assert sorted(traced) == sorted(statuses[status] for status in row.adapters)


async def test_the_reason_has_the_error_of_the_adapter(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=refuse))
    result = await relay.publish(SUBJECT, {}, sender=SENDER)
    (letter,) = await relay.dead_letters()
    assert letter.reason == "adapter delivery failed: sample: chat not found (404)"
    assert result.adapter_results is not None
    assert result.adapter_results[0].error == letter.reason


@pytest.mark.parametrize("detached", [False, True], ids=["awaited", "detached"])
async def test_a_detached_failure_reads_like_an_awaited_one(detached: bool, relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode, detached=detached))
    result = await relay.publish(SUBJECT, {}, sender=SENDER)
    await relay.idle()
    assert result.delivered_to == int(detached)
    (letter,) = await relay.dead_letters()
    assert (letter.code, letter.partial) == ("adapter_failed", False)
    assert letter.reason == "adapter delivery failed: sample: ConnectionError: platform is down"


async def test_a_refusal_by_policy_is_no_dead_letter(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter())
    relay.force_breaker("relay.adapter.sample", CircuitState.OPEN, "test")
    result = await relay.publish(SUBJECT, {}, sender=SENDER)
    assert result.delivered_to == 0
    assert [rejection.reason for rejection in result.rejected or ()] == ["circuit_open"]
    assert [adapter.status for adapter in result.adapter_results or ()] == ["refused"]
    assert await relay.dead_letters(include_partial=True) == []


async def test_a_delivery_that_times_out_is_a_failure(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=hang, timeout=0.01))
    result = await relay.publish(SUBJECT, {}, sender=SENDER)
    assert (result.delivered_to, [adapter.status for adapter in result.adapter_results or ()]) == (0, ["failed"])
    (letter,) = await relay.dead_letters()
    assert (letter.code, letter.reason) == (
        "adapter_failed",
        "adapter delivery failed: sample: no answer within 0.01 s",
    )


async def test_what_is_still_in_line_when_the_answer_is_due_counts_as_taken(relay: RelayCore, clock: FakeClock) -> None:
    gate = Gate()
    await relay.add_adapter(SampleAdapter(platform=gate, timeout=20))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(relay.publish(SUBJECT, 1, sender=SENDER))
        second = group.create_task(relay.publish(SUBJECT, 2, sender=SENDER))
        await gate.reached.wait()
        clock.advance(20)
        await asyncio.sleep(0)
        assert not second.done()
        clock.advance(1)
    for publish in (first, second):
        result = publish.result()
        assert (result.delivered_to, [adapter.status for adapter in result.adapter_results or ()]) == (1, ["queued"])
    gate.opened.set()
    await relay.idle()
    assert relay.adapters()[0].delivered == 2
    assert await relay.dead_letters(include_partial=True) == []


@pytest.mark.parametrize("mailbox", [False, True], ids=["alone", "beside a mailbox"])
async def test_what_fails_after_the_answer_was_due_is_judged_by_the_same_rule(
    mailbox: bool, relay: RelayCore, clock: FakeClock
) -> None:
    gate = Gate()

    async def fail_late(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        await gate(envelope, context)
        return DeliveryResult(ok=False, error="too late")

    if mailbox:
        await relay.register_endpoint(SUBJECT)
    await relay.add_adapter(SampleAdapter(platform=fail_late))
    async with asyncio.TaskGroup() as group:
        publish = group.create_task(relay.publish(SUBJECT, {}, sender=SENDER))
        await gate.reached.wait()
        clock.advance(31)
    assert publish.result().delivered_to == 1 + mailbox
    gate.opened.set()
    await relay.idle()
    await until(lambda: any(box.failed for box in relay.mailboxes()))
    (letter,) = await relay.dead_letters(include_partial=True)
    assert (letter.code, letter.partial) == ("adapter_failed", mailbox)


async def test_a_failure_does_not_wait_for_ever_for_the_others(relay: RelayCore, clock: FakeClock) -> None:
    gate = Gate()
    await relay.add_adapter(SampleAdapter("slow", platform=gate))
    await relay.add_adapter(SampleAdapter("broken", platform=explode))
    async with asyncio.TaskGroup() as group:
        publish = group.create_task(relay.publish(SUBJECT, {}, sender=SENDER))
        await gate.reached.wait()
        await until(lambda: relay.adapters()[0].failed == 1)
        clock.advance(31)
    assert {adapter.adapter_id: adapter.status for adapter in publish.result().adapter_results or ()} == {
        "broken": "failed",
        "slow": "queued",
    }
    (letter,) = await relay.dead_letters(include_partial=True)
    assert letter.partial
    gate.opened.set()


async def test_a_failure_is_parked_although_its_publisher_gave_up(relay: RelayCore) -> None:
    gate = Gate()

    async def fail(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        await gate(envelope, context)
        raise ConnectionError("gone")

    await relay.add_adapter(SampleAdapter(platform=fail))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await relay.publish(SUBJECT, {}, sender=SENDER)
    gate.opened.set()
    await relay.idle()
    await until(lambda: any(box.failed for box in relay.mailboxes()))
    assert [letter.code for letter in await relay.dead_letters()] == ["adapter_failed"]


async def test_a_failed_copy_is_replayed_to_its_adapter_only(relay: RelayCore) -> None:
    broken, good = SampleAdapter("broken", platform=explode), SampleAdapter("good")
    await relay.add_adapter(broken)
    await relay.add_adapter(good)
    result = await relay.publish(SUBJECT, "hi", sender=SENDER)
    broken.platform = accept
    plan = await relay.plan_replay(ids=[result.message_id])
    outcome = await relay.run_replay(plan.id)
    assert (outcome.delivered, outcome.failed) == (1, 0)
    assert (broken.got, good.got) == (["hi", "hi"], ["hi"])
    assert [context.replays for context in broken.deliveries] == [0, 1]
    assert await relay.dead_letters(include_partial=True) == []

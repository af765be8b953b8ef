"""A sender that waits for an answer gets a notice if its message was stored and then failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay_core import (
    AccessRule,
    DeliveryContext,
    DeliveryResult,
    Envelope,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
)
from relay_core.testing import FakeClock
from tests.kit.adapters import Gate, SampleAdapter, accept, explode
from tests.kit.waiting import until

SUBJECT = "relay.out.chat"
ASKER = "relay.agent.asker"
CONFIG = RelayConfig(
    durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(window_secs=60, max_per_window=2))
)

pytestmark = pytest.mark.bus(CONFIG, endpoints=[ASKER])


def depth(relay: RelayCore, subject: str = ASKER) -> int:
    return {box.subject: box.depth for box in relay.mailboxes()}.get(subject, 0)


async def notices(relay: RelayCore) -> list[Envelope]:
    """Return the messages in the asker's mailbox, once the bus is idle."""
    await relay.idle()
    await until(lambda: len(relay.bus.tasks) == 0)
    return await relay.inbox(ASKER)


@pytest.mark.parametrize("detached", [False, True], ids=["awaited", "detached"])
async def test_a_failed_delivery_sends_a_notice_to_the_sender_that_waits(detached: bool, relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode, detached=detached))
    question = {"content": "hi", "conversationId": "c1", "correlationId": "q1"}
    asked = await relay.publish(SUBJECT, question, sender=ASKER, reply_to=ASKER)
    (notice,) = await notices(relay)
    assert notice.sender == "relay.adapter.sample"
    assert notice.payload == {
        "content": "adapter delivery failed: sample: ConnectionError: platform is down",
        "performative": "failure",
        "conversationId": "c1",
        "correlationId": "q1",
        "platformData": {"messageId": asked.message_id, "code": "adapter_failed", "partial": False},
    }
    (span,) = await relay.trace(notice.id)
    assert (span.parent_id, span.trace_id) == (asked.message_id, asked.message_id)
    assert notice.budget.hop_count == 2


async def test_without_a_correlation_id_the_message_id_is_one(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode))
    asked = await relay.publish(SUBJECT, "plain text", sender=ASKER, reply_to=ASKER)
    (notice,) = await notices(relay)
    assert notice.payload["correlationId"] == asked.message_id


async def test_a_notice_of_a_partial_failure_is_marked(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter("good"))
    await relay.add_adapter(SampleAdapter("bad", platform=explode))
    await relay.publish(SUBJECT, {}, sender=ASKER, reply_to=ASKER)
    (notice,) = await notices(relay)
    assert (notice.sender, notice.payload["platformData"]["partial"]) == ("relay.adapter.bad", True)


@pytest.mark.parametrize(
    ("payload", "reply_to"),
    [
        pytest.param({"content": "hi"}, None, id="no reply_to"),
        pytest.param({"content": "no", "performative": "failure"}, ASKER, id="it is itself a failure notice"),
    ],
)
async def test_no_notice_is_due(payload: Any, reply_to: str | None, relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode))
    await relay.publish(SUBJECT, payload, sender=ASKER, reply_to=reply_to)
    assert len(await relay.dead_letters()) == 1
    assert await notices(relay) == []


async def test_a_failed_handler_sends_a_notice_from_the_bus(relay: RelayCore) -> None:
    async def fail(envelope: Envelope) -> None:
        raise ValueError("no")

    await relay.subscribe(SUBJECT, fail)
    asked = await relay.publish(SUBJECT, {}, sender="relay.agent.other", reply_to=ASKER)
    (notice,) = await notices(relay)
    assert (notice.sender, notice.parent_id) == ("relay.system.bus", asked.message_id)
    assert notice.payload["content"].endswith("ValueError: no")
    assert notice.payload["platformData"]["code"] == "handler_failed"


async def test_a_pull_consumer_that_fails_does_so_as_well(relay: RelayCore) -> None:
    await relay.register_endpoint(SUBJECT)
    asked = await relay.publish(SUBJECT, {}, sender="relay.agent.other", reply_to=ASKER)
    await relay.claim(SUBJECT)
    await relay.fail(SUBJECT, asked.message_id, "out of ink")
    (notice,) = await notices(relay)
    assert (notice.sender, notice.payload["content"]) == ("relay.system.bus", "out of ink")


async def test_a_message_without_a_target_is_reported_by_the_result_alone(relay: RelayCore) -> None:
    result = await relay.publish(SUBJECT, {}, sender="relay.agent.other", reply_to=ASKER)
    assert result.delivered_to == 0
    assert await notices(relay) == []


async def test_a_replay_that_fails_again_sends_no_second_notice(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode))
    asked = await relay.publish(SUBJECT, {}, sender=ASKER, reply_to=ASKER)
    plan = await relay.plan_replay(ids=[asked.message_id])
    assert (await relay.run_replay(plan.id)).failed == 1
    assert len(await notices(relay)) == 1


async def test_two_failing_adapters_do_not_tell_each_other_for_ever(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter("ping", ["relay.ping"], platform=explode))
    pong = SampleAdapter("pong", ["relay.pong"], platform=explode)
    await relay.add_adapter(pong)
    await relay.publish("relay.ping", {}, sender=ASKER, reply_to="relay.pong")
    await notices(relay)
    assert len(pong.got) == 1
    assert sorted(letter.code for letter in await relay.dead_letters()) == ["adapter_failed", "adapter_failed"]


async def test_the_adapter_that_failed_may_carry_the_notice_to_another_of_its_agents(relay: RelayCore) -> None:
    async def answer_for_b_only(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=envelope.subject == "relay.bot.b", error="no such agent")

    bots = SampleAdapter("bots", ["relay.bot.*"], platform=answer_for_b_only)
    await relay.add_adapter(bots)
    await relay.publish("relay.bot.a", "?", sender="relay.bot.b", reply_to="relay.bot.b")
    await notices(relay)
    assert len(bots.got) == 2
    assert (state := relay.adapters()[0]).delivered == state.failed == 1


async def test_neither_the_rate_limit_nor_a_spent_budget_keeps_a_notice_back(relay: RelayCore) -> None:
    await relay.add_adapter(SampleAdapter(platform=explode))
    for number in range(4):
        budget = {"hopCount": 4, "maxHops": 5, "callBudgetRemaining": 1, "ancestorChain": [ASKER]}
        await relay.publish(SUBJECT, {}, sender=f"relay.agent.n{number}", reply_to=ASKER, budget=budget)
    assert len(await notices(relay)) == 4


async def test_a_message_that_expires_in_an_adapters_mailbox_sends_a_notice(relay: RelayCore, clock: FakeClock) -> None:
    gate = Gate()
    await relay.add_adapter(SampleAdapter(platform=gate, detached=True))
    await relay.publish(SUBJECT, "under way", sender=ASKER)
    await gate.reached.wait()
    await relay.publish(SUBJECT, "?", sender=ASKER, reply_to=ASKER, budget={"ttl": clock.now_ms() + 1000})
    clock.advance(2)
    gate.opened.set()
    (notice,) = await notices(relay)
    assert notice.payload["platformData"]["code"] == "expired"
    assert notice.budget.ttl > clock.now_ms()


async def test_the_access_rules_hold_for_a_notice(relay: RelayCore, caplog: pytest.LogCaptureFixture) -> None:
    rule = AccessRule.model_validate(
        {"from": "relay.adapter.>", "to": "relay.agent.>", "action": "deny", "priority": 1}
    )
    relay.bus.access.add_rule(rule)
    await relay.add_adapter(SampleAdapter(platform=explode))
    asked = await relay.publish(SUBJECT, {}, sender=ASKER, reply_to=ASKER)
    assert await notices(relay) == []
    assert f"{ASKER} gets no notice that {asked.message_id} failed" in caplog.text


async def _crash_while_delivering(data_dir: Path, clock: FakeClock, reply_to: str) -> None:
    """Leave a message claimed, as a process that was killed during its delivery does."""
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.register_endpoint(ASKER)
        await relay.add_adapter(SampleAdapter(connects=False))
        result = await relay.publish(SUBJECT, "?", sender=ASKER, reply_to=reply_to)
        (mailbox,) = [box for box in relay.bus.mailboxes if box.subject == "relay.adapter.sample"]
    name = f"{result.message_id}.json"
    (mailbox.maildir.path / "new" / name).rename(mailbox.maildir.path / "cur" / name)


async def test_a_notice_of_an_interrupted_message_goes_to_an_endpoint_at_the_next_start(
    data_dir: Path, clock: FakeClock
) -> None:
    await _crash_while_delivering(data_dir, clock, ASKER)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        (notice,) = await notices(relay)
    assert notice.payload["platformData"]["code"] == "interrupted"


async def test_a_notice_of_an_interrupted_message_goes_to_an_adapter_once_it_is_added(
    data_dir: Path, clock: FakeClock
) -> None:
    await _crash_while_delivering(data_dir, clock, "relay.human.chat.1")
    chat = SampleAdapter("chat", ["relay.human.chat.>"], platform=accept)
    async with RelayCore(data_dir, CONFIG, clock) as relay:
        await relay.add_adapter(SampleAdapter())
        assert await notices(relay) == []
        await relay.add_adapter(chat)
        await notices(relay)
        codes = [letter.code for letter in await relay.dead_letters()]
    assert codes == ["interrupted"]
    assert [payload["performative"] for payload in chat.got if isinstance(payload, dict)] == ["failure"]

"""What the log says of adapters, breakers and reloads: a line at once, with its reason, and no flood of them."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import pytest

from relay_core import AdapterStatus, DeliveryContext, DeliveryResult, Envelope
from relay_core.core import RelayCore
from relay_core.errors import StorageError
from relay_core.limited_log import EVERY_SECS
from relay_core.testing import FakeClock
from tests.kit.adapters import SampleAdapter, hang
from tests.kit.daemon import UNLIMITED
from tests.kit.servers.webhook import SECRET, a_receiver, a_relay, a_webhook, respond
from tests.kit.waiting import until

SENDER = "relay.agent.a"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "relay_core")
    return caplog


def said(lines: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [message for message in lines.messages if text in message]


async def fail_once(relay: RelayCore) -> None:
    before = relay.adapters()[0].failed
    await relay.publish("relay.out.x", {"content": "hi"}, sender=SENDER)
    await until(lambda: relay.adapters()[0].failed > before)


async def test_a_failed_delivery_and_the_breaker_that_opens_are_logged_with_their_reason_and_limited(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    config = {**UNLIMITED, "reliability": {**UNLIMITED["reliability"], "circuitBreaker": {"failureThreshold": 4}}}
    async with a_receiver() as receiver, a_relay(data_dir, clock, config) as relay:
        receiver.respond = respond(500)
        await relay.add_adapter(a_webhook(None, {"url": receiver.url}))
        for _ in range(3):
            await fail_once(relay)
        (line,) = said(lines, "did not deliver")
        assert line.startswith("adapter hook did not deliver ")
        assert "500" in line
        clock.advance(EVERY_SECS)
        await fail_once(relay)
        assert "(2 more like it" in said(lines, "did not deliver")[1]
        (opened,) = said(lines, "breaker of")
        assert "CLOSED → OPEN: " in opened
        assert "relay.adapter.hook" in opened
        assert SECRET not in lines.text
        assert {record.levelname for record in lines.records if "did not deliver" in record.message} == {"WARNING"}


async def test_an_adapter_that_does_not_answer_in_time_is_logged(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    async with a_relay(data_dir) as relay:
        await relay.add_adapter(SampleAdapter("slow", platform=hang, timeout=0.05))
        await fail_once(relay)
        (line,) = said(lines, "no answer to")
        assert line.startswith("adapter slow: no answer to ")
        assert line.endswith("within 0.05 s")


async def test_an_adapter_that_asks_to_be_tried_later_is_logged(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    async def later(envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=False, error="too many requests", retry_after=5)

    async with a_relay(data_dir, FakeClock()) as relay:
        await relay.add_adapter(SampleAdapter("busy", platform=later))
        await relay.publish("relay.out.x", {"content": "hi"}, sender=SENDER)
        await until(lambda: bool(said(lines, "did not take")))
        (line,) = said(lines, "did not take")
        assert line.startswith("adapter busy did not take ")
        assert "too many requests" in line


async def test_what_is_wrong_with_an_adapter_is_logged_again_when_it_is_something_else(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    async with a_relay(data_dir, FakeClock()) as relay:
        adapter = SampleAdapter("sick")
        await relay.add_adapter(adapter)
        for detail in ("409: another one reads", "409: another one reads", "the network is down"):
            adapter.set_status(AdapterStatus("error", detail))
        assert said(lines, "adapter sick: error") == [
            "adapter sick: error: 409: another one reads",
            "adapter sick: error: the network is down",
        ]
        adapter.set_status(AdapterStatus("connected", "as before"))
        lines.clear()
        adapter.set_status(AdapterStatus("connected", "another good word"))
        assert said(lines, "adapter sick") == []


async def test_a_reload_is_logged_whether_it_is_in_force_or_refused(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    async with a_relay(data_dir, FakeClock()) as relay:
        relay.data_dir.config.write_text('{"limits": {"maxPayloadBytes": 1000}}')
        relay.data_dir.access_rules.write_text("[]")
        relay.reload()
        assert said(lines, "config.json was read again and is in force")
        assert said(lines, "access-rules.json was read again: 0 rules are in force")
        relay.data_dir.config.write_text('{"limits": {"maxPayloadBytes": "many"}}')
        relay.data_dir.access_rules.write_text("no rules")
        relay.reload()
        (line,) = said(lines, "config.json is not used")
        assert "maxPayloadBytes" in line
        assert "the last good one stays in force" in line
        (line,) = said(lines, "everything is denied")
        assert "access-rules.json" in line


async def test_a_message_that_cannot_be_dead_lettered_is_logged_once_a_minute(
    data_dir: Path, lines: pytest.LogCaptureFixture
) -> None:
    async with a_relay(data_dir, FakeClock()) as relay:
        box = await relay.register_endpoint("relay.agent.b")
        for n in range(3):
            await relay.publish("relay.agent.b", n, sender=SENDER)
        claimed = await relay.claim("relay.agent.b", 3)
        failed = relay.data_dir.mailboxes / box.hash / "failed"
        failed.rename(failed.with_name("away"))
        failed.touch()  # a file in the way: no dead letter can be written
        for envelope in claimed:
            with suppress(StorageError):
                await relay.fail("relay.agent.b", envelope.id, "no")
        failed.unlink()
        failed.with_name("away").rename(failed)
        assert len(said(lines, "could not be dead-lettered")) == 1

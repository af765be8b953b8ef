"""Messages that arrive before their subscriber, and subscriptions without an endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_core import CircuitState, RelayCore
from tests.kit.bus import SENDER, A, B, assert_counts_match_files, breaker, config, files, publish_all, span
from tests.kit.handlers import Listener

# Backlog


@pytest.mark.parametrize("pattern", [A, "relay.agent.*", "relay.>", "*.*.a"])
@pytest.mark.parametrize("restarted", [False, True], ids=["same bus", "restarted"])
async def test_a_late_subscriber_drains_the_backlog_in_order(data_dir: Path, pattern: str, restarted: bool) -> None:
    listener = Listener()
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await publish_all(relay, A, list(range(40)))
        if not restarted:
            await relay.subscribe(pattern, listener)
            await relay.publish(A, 40, sender=SENDER)
            await relay.idle()
    if restarted:
        async with RelayCore(data_dir, config()) as relay:
            await relay.subscribe(pattern, listener)
            await relay.publish(A, 40, sender=SENDER)
            await relay.idle()
            assert_counts_match_files(relay, data_dir)
    assert listener.got == list(range(41))
    assert files(data_dir, A, "new") == []


async def test_a_wildcard_drains_the_backlog_of_every_mailbox_it_hears_and_of_no_other(relay: RelayCore) -> None:
    listener = Listener()
    for subject in (A, B, "relay.other.a"):
        await relay.register_endpoint(subject)
        await publish_all(relay, subject, [f"{subject} {number}" for number in range(3)])
    await relay.subscribe("relay.agent.*", listener)
    await relay.idle()
    assert sorted(listener.got) == [f"{subject} {number}" for subject in (A, B) for number in range(3)]
    assert len(await relay.inbox("relay.other.a")) == 3


# Subscriptions without an endpoint


async def test_a_publish_counts_the_subscriptions_that_have_no_endpoint_behind_them(relay: RelayCore) -> None:
    listeners = [Listener(), Listener()]
    await relay.subscribe(A, listeners[0])
    await relay.subscribe("relay.>", listeners[1])
    result = await relay.publish(A, 1, sender=SENDER)
    assert result.delivered_to == 2
    await relay.register_endpoint(A)
    assert (await relay.publish(A, 2, sender=SENDER)).delivered_to == 1
    await relay.idle()
    assert [listener.got for listener in listeners] == [[1, 2], [1, 2]]
    assert (await span(relay, result.message_id)).target_kind == "subscription"


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_mail_of_a_subscription_without_endpoint_survives_a_restart(data_dir: Path, durability: str) -> None:
    first, second = Listener(held=True), Listener()
    async with RelayCore(data_dir, config(durability)) as relay:
        subscription = await relay.subscribe(A, first)
        await publish_all(relay, A, [1, 2, 3])
        await first.entered.wait()
        await subscription.close()
        first.gate.set()
        await relay.idle()
    async with RelayCore(data_dir, config(durability)) as relay:
        assert relay.endpoints() == []
        await relay.subscribe("relay.*.a", second)
        await relay.idle()
    assert (first.got, second.got) == ([1], [2, 3])


async def test_a_subject_that_had_only_a_dead_letter_is_a_subscriptions_target_like_any_other(relay: RelayCore) -> None:
    await relay.publish(A, 1, sender=SENDER)
    listener = Listener()
    await relay.subscribe(A, listener)
    result = await relay.publish(A, 2, sender=SENDER)
    await relay.idle()
    assert listener.got == [2]
    assert (await span(relay, result.message_id)).target_kind == "subscription"
    assert breaker(relay).state is CircuitState.CLOSED


async def test_a_subscriber_to_an_endpoint_that_was_unregistered_still_gets_what_is_published(
    relay: RelayCore,
) -> None:
    listener = Listener()
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await relay.unregister_endpoint(A)
    result = await relay.publish(A, 1, sender=SENDER)
    assert result.delivered_to == 1
    await relay.idle()
    assert listener.got == [1]

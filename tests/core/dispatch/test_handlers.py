"""Handlers: they run concurrently, their failures and timeouts, and calls of the bus from a handler."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from relay_core import Envelope, RelayCore, Subscription
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B, C, assert_counts_match_files, config, files, publish_all, span
from tests.kit.handlers import Listener
from tests.kit.waiting import PATIENCE_SECS, until

# Handlers


async def test_all_handlers_of_a_subject_run_side_by_side(relay: RelayCore) -> None:
    await relay.register_endpoint(A)
    listeners = [Listener(held=True) for _ in range(3)]
    for pattern, listener in zip((A, "relay.agent.*", "relay.>"), listeners, strict=True):
        await relay.subscribe(pattern, listener)
    (message_id,) = await publish_all(relay, A, ["x"])
    for listener in listeners:
        await listener.entered.wait()  # none waits for another
    for listener in listeners:
        listener.gate.set()
    await relay.idle()
    found = await span(relay, message_id)
    assert found.status == "done"
    assert [outcome["ok"] for outcome in found.outcomes] == [True] * 3


async def test_a_message_that_every_handler_fails_is_a_dead_letter(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    for _ in range(2):
        await relay.subscribe(A, Listener(fails=True))
    (message_id,) = await publish_all(relay, A, ["x"])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert letter.envelope is not None
    assert (letter.message_id, letter.code, letter.envelope.payload) == (message_id, "handler_failed", "x")
    assert "ValueError: no use for x" in letter.reason
    assert (files(data_dir, A, "failed"), files(data_dir, A, "cur")) == ([message_id], [])
    found = await span(relay, message_id)
    assert (found.status, found.code) == ("failed", "handler_failed")
    assert [outcome["ok"] for outcome in found.outcomes] == [False, False]


async def test_a_message_that_some_handlers_fail_is_completed_as_partial(relay: RelayCore, data_dir: Path) -> None:
    await relay.register_endpoint(A)
    good, bad = Listener(), Listener(fails=True)
    await relay.subscribe(A, good)
    await relay.subscribe(A, bad)
    (message_id,) = await publish_all(relay, A, ["x"])
    await relay.idle()
    assert (good.got, bad.got) == (["x"], ["x"])
    assert await relay.dead_letters(include_partial=True) == []
    assert (files(data_dir, A, "cur"), files(data_dir, A, "failed")) == ([], [])
    found = await span(relay, message_id)
    assert (found.status, found.code) == ("partial", "handler_failed")
    assert [(outcome["ok"], outcome["error"] is None) for outcome in found.outcomes] == [(True, True), (False, False)]
    assert "no use for x" in found.outcomes[1]["error"]


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_handler_that_takes_too_long_has_failed_and_the_next_message_is_begun(
    data_dir: Path, kind: str
) -> None:
    release, forever, got = threading.Event(), asyncio.Event(), []

    async def hang(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload == 1:
            await forever.wait()

    def block(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload == 1:
            release.wait(PATIENCE_SECS)

    async with RelayCore(data_dir, config(handler_timeout_ms=50)) as relay:
        try:
            await relay.register_endpoint(A)
            await relay.subscribe(A, hang if kind == "async" else block)
            await publish_all(relay, A, [1, 2])
            await relay.idle()
            assert got == [1, 2]
            (letter,) = await relay.dead_letters()
            assert (letter.code, letter.envelope and letter.envelope.payload) == ("timeout", 1)
            assert letter.reason.endswith("no answer within 0.05 s")
        finally:
            release.set()


async def test_each_handler_has_a_timeout_of_its_own(data_dir: Path) -> None:
    forever, good = asyncio.Event(), Listener()

    async def hang(envelope: Envelope) -> None:
        await forever.wait()

    async with RelayCore(data_dir, config(handler_timeout_ms=50)) as relay:
        await relay.register_endpoint(A)
        for handler in (hang, good, hang):
            await relay.subscribe(A, handler)
        (message_id,) = await publish_all(relay, A, ["x"])
        await relay.idle()
        found = await span(relay, message_id)
        assert (found.status, found.code) == ("partial", "timeout")
        errors = [outcome["error"] for outcome in found.outcomes]
        assert [error and error.endswith("no answer within 0.05 s") for error in errors] == [True, None, True]


async def test_a_timeout_that_the_handler_itself_meets_is_its_failure(relay: RelayCore) -> None:
    async def impatient(envelope: Envelope) -> None:
        raise TimeoutError("the database")

    await relay.register_endpoint(A)
    await relay.subscribe(A, impatient)
    await publish_all(relay, A, ["x"])
    await relay.idle()
    (letter,) = await relay.dead_letters()
    assert letter.code == "handler_failed"
    assert letter.reason.endswith("TimeoutError: the database")


async def test_a_handler_may_publish_to_its_own_mailbox(relay: RelayCore) -> None:
    got: list[int] = []

    async def count_down(envelope: Envelope) -> None:
        got.append(envelope.payload)
        if envelope.payload:
            result = await relay.publish(A, envelope.payload - 1, sender=A)
            assert result.delivered_to == 1

    await relay.register_endpoint(A)
    await relay.subscribe(A, count_down)
    await relay.publish(A, 5, sender=SENDER)
    await relay.idle()
    assert got == [5, 4, 3, 2, 1, 0]


async def test_a_handler_may_subscribe_another_which_gets_the_next_message(relay: RelayCore) -> None:
    late = Listener()
    subscriptions: list[Subscription] = []

    async def invite(envelope: Envelope) -> None:
        if not subscriptions:
            subscriptions.append(await relay.subscribe(A, late))

    await relay.register_endpoint(A)
    await relay.subscribe(A, invite)
    await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert late.got == [2, 3]


async def test_a_handler_may_unsubscribe_itself_and_its_message_is_still_finished(
    relay: RelayCore, data_dir: Path
) -> None:
    got = []

    async def once(envelope: Envelope) -> None:
        got.append(envelope.payload)
        await subscription.close()

    await relay.register_endpoint(A)
    subscription = await relay.subscribe(A, once)
    first, *rest = await publish_all(relay, A, [1, 2, 3])
    await relay.idle()
    assert got == [1]
    assert (await span(relay, first)).status == "done"
    assert files(data_dir, A, "new") == rest
    assert_counts_match_files(relay, data_dir)


async def test_a_bounded_subscription_takes_its_mailboxes_in_turn_and_leaves_the_rest_unclaimed(
    relay: RelayCore,
) -> None:
    for subject in (A, B, C):
        await relay.register_endpoint(subject)
    began: list[str] = []
    go_on = asyncio.Semaphore(0)

    async def handler(envelope: Envelope) -> None:
        began.append(envelope.subject)
        await go_on.acquire()

    await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
    for _ in range(2):
        for subject in (A, B, C):
            await relay.publish(subject, None, sender=SENDER)
    for handled in range(6):
        await until(lambda: len(began) == handled + 1)  # noqa: B023 - awaited within the round
        states = relay.mailboxes()
        assert (sum(mailbox.claimed for mailbox in states), sum(mailbox.depth for mailbox in states)) == (
            1,
            5 - handled,
        )
        go_on.release()
    await relay.idle()
    assert began == [A, B, C, A, B, C]


async def test_messages_that_wait_for_a_bounded_subscription_stay_when_it_closes(relay: RelayCore) -> None:
    for subject in (A, B):
        await relay.register_endpoint(subject)
    go_on = asyncio.Event()
    handled: list[str] = []

    async def handler(envelope: Envelope) -> None:
        await go_on.wait()
        handled.append(envelope.subject)

    subscription = await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
    for subject in (A, B):
        await relay.publish(subject, None, sender=SENDER)
    await until(lambda: sum(mailbox.claimed for mailbox in relay.mailboxes()) == 1)
    await subscription.close()
    go_on.set()
    await relay.idle()
    assert handled == [A]
    assert [mailbox.depth for mailbox in relay.mailboxes()] == [0, 1]


async def test_closing_does_not_wait_for_mail_that_waits_for_its_turn(data_dir: Path) -> None:
    handled: list[str] = []
    go_on = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        await go_on.wait()
        handled.append(envelope.subject)

    async with RelayCore(data_dir, config()) as relay:
        await relay.subscribe("relay.agent.*", handler, max_in_flight=1)
        for subject in (A, B, C):
            await relay.register_endpoint(subject)
            await relay.publish(subject, None, sender=SENDER)
        await until(lambda: sum(mailbox.claimed for mailbox in relay.mailboxes()) == 1)
        asyncio.get_running_loop().call_soon(go_on.set)
    assert handled == [A]
    async with RelayCore(data_dir, config()) as relay:
        assert [mailbox.depth for mailbox in relay.mailboxes()] == [0, 1, 1]
        assert await relay.dead_letters() == []


async def test_mail_that_waits_when_its_subscriber_leaves_stays_for_the_next(relay: RelayCore) -> None:
    first, second = Listener(held=True), Listener()
    await relay.register_endpoint(A)
    subscription = await relay.subscribe(A, first)
    await publish_all(relay, A, [1, 2, 3])
    await first.entered.wait()
    await subscription.close()
    first.gate.set()
    await relay.idle()
    assert first.got == [1]
    assert [envelope.payload for envelope in await relay.inbox(A)] == [2, 3]
    await publish_all(relay, A, [4])
    await relay.subscribe(A, second)
    await relay.idle()
    assert second.got == [2, 3, 4]


# Time to live


async def test_a_message_that_expires_in_line_is_parked_when_its_turn_comes(relay: RelayCore, clock: FakeClock) -> None:
    listener = Listener(held=True)
    await relay.register_endpoint(A)
    await relay.subscribe(A, listener)
    await publish_all(relay, A, [1])
    brief = await relay.publish(A, 2, sender=SENDER, budget={"ttl": clock.now_ms() + 1000})
    edge = await relay.publish(A, 3, sender=SENDER, budget={"ttl": clock.now_ms() + 1001})
    await listener.entered.wait()
    clock.advance(1.001)
    listener.gate.set()
    await relay.idle()
    assert listener.got == [1, 3]  # a message lives up to and including its TTL
    (letter,) = await relay.dead_letters()
    assert (letter.message_id, letter.code, letter.reason) == (brief.message_id, "expired", "message expired (TTL)")
    assert (await span(relay, brief.message_id)).claimed_at is None
    assert (await span(relay, edge.message_id)).status == "done"

"""Subscriptions: any callable is a handler; one that blocks delays only its own mailbox, and no publish."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay_core import RelayConfig, RelayCore
from relay_core.config import DispatchConfig
from relay_core.dispatch.subscriptions import Handler, Subscription, Subscriptions
from relay_core.dispatch.worker_pool import Pool
from relay_core.errors import Closed, InvalidSubject
from relay_core.messages import subjects
from relay_core.messages.envelope import Envelope
from relay_core.messages.trie import _Level
from tests.kit.bus import SENDER, A, B
from tests.kit.waiting import PATIENCE_SECS

pytestmark = pytest.mark.bus(endpoints=[A, B])


class Seen:
    """Collects payloads and the threads they came in."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self.threads: list[threading.Thread] = []
        self.full = threading.Event()
        """Set at the fiftieth."""

    def take(self, envelope: Envelope) -> None:
        self.payloads.append(envelope.payload)
        self.threads.append(threading.current_thread())
        if len(self.payloads) == 50:
            self.full.set()

    async def take_async(self, envelope: Envelope) -> None:
        await asyncio.sleep(0)
        self.take(envelope)

    def take_later(self, envelope: Envelope) -> Any:
        return self.take_async(envelope)


class Callable_:
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def __call__(self, envelope: Envelope) -> None:
        self.seen.take(envelope)


class AsyncCallable:
    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    async def __call__(self, envelope: Envelope) -> None:
        await self.seen.take_async(envelope)


def with_more(extra: int, seen: Seen, envelope: Envelope) -> None:
    seen.take(envelope)


async def with_more_async(extra: int, seen: Seen, envelope: Envelope) -> None:
    await seen.take_async(envelope)


@pytest.mark.parametrize(
    ("make", "on_loop"),
    [
        (lambda seen: seen.take, False),
        (lambda seen: lambda envelope: seen.take(envelope), False),
        (Callable_, False),
        (lambda seen: functools.partial(with_more, 1, seen), False),
        (lambda seen: seen.take_async, True),
        (AsyncCallable, True),
        (lambda seen: functools.partial(with_more_async, 1, seen), True),
        (lambda seen: seen.take_later, True),
        (lambda seen: lambda envelope: seen.take_async(envelope), True),
    ],
    ids=[
        "method",
        "lambda",
        "object",
        "partial",
        "async method",
        "async object",
        "async partial",
        "method that returns a coroutine",
        "lambda that returns a coroutine",
    ],
)
async def test_any_callable_handles(make: Callable[[Seen], Handler], on_loop: bool, relay: RelayCore) -> None:
    seen = Seen()
    await relay.subscribe(A, make(seen))
    for number in range(3):
        await relay.publish(A, number, sender=SENDER)
    await relay.idle()
    assert seen.payloads == [0, 1, 2]
    assert all((thread is threading.main_thread()) == on_loop for thread in seen.threads)
    assert await relay.dead_letters() == []


async def test_a_blocking_handler_blocks_no_publish_and_no_other_mailbox(relay: RelayCore) -> None:
    entered, go_on = threading.Event(), threading.Event()
    others = Seen()

    def block(envelope: Envelope) -> None:
        entered.set()
        assert go_on.wait(PATIENCE_SECS)

    await relay.subscribe(A, block)
    await relay.subscribe(B, others.take)
    await relay.publish(A, 1, sender=SENDER)
    assert await asyncio.to_thread(entered.wait, PATIENCE_SECS)
    try:
        for number in range(50):
            assert (await relay.publish(A, number, sender="relay.agent.s1")).delivered_to == 1
            assert (await relay.publish(B, number, sender="relay.agent.s2")).delivered_to == 1
        assert await asyncio.to_thread(others.full.wait, PATIENCE_SECS)
        assert others.payloads == list(range(50))
        state = next(state for state in relay.mailboxes() if state.subject == A)
        assert (state.depth, state.claimed) == (50, 1)
    finally:
        go_on.set()
    await relay.idle()


def raise_it(error: BaseException) -> Handler:
    def handle(envelope: Envelope) -> None:
        raise error

    return handle


def raise_it_async(error: BaseException) -> Handler:
    async def handle(envelope: Envelope) -> None:
        raise error

    return handle


async def waits_for_a_cancelled_task(envelope: Envelope) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(asyncio.Event().wait())
        task.cancel()
        await task


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (raise_it(ValueError("broken")), "ValueError: broken"),
        (raise_it_async(ValueError("broken")), "ValueError: broken"),
        (raise_it(KeyError()), "KeyError"),
        (raise_it(StopIteration()), "StopIteration"),
        (raise_it(asyncio.CancelledError()), "cancelled"),
        (raise_it_async(asyncio.CancelledError()), "cancelled"),
        (waits_for_a_cancelled_task, "cancelled"),
        (raise_it(SystemExit(3)), "sys.exit(3)"),
        (raise_it_async(SystemExit(3)), "sys.exit(3)"),
        (lambda envelope: sys.exit("bye"), "sys.exit('bye')"),
        (raise_it(TimeoutError("its own")), "TimeoutError: its own"),
        (raise_it_async(TimeoutError("its own")), "TimeoutError: its own"),
        (raise_it(ValueError("no \udcff Unicode")), "ValueError: no ? Unicode"),
        (raise_it(ValueError("x" * 5000)), "xxx"),
        (lambda: None, "TypeError"),
    ],
    ids=[
        "sync", "async", "no text", "StopIteration", "CancelledError", "async CancelledError", "a cancelled task",
        "SystemExit", "async SystemExit", "sys.exit", "its own timeout", "its own async timeout", "no Unicode", "long",
        "wrong signature",
    ],
)  # fmt: skip
async def test_any_exception_of_a_handler_is_a_dead_letter_and_the_mailbox_continues(
    handler: Handler, reason: str, relay: RelayCore
) -> None:
    subscription = await relay.subscribe(A, handler)
    for number in range(2):
        await relay.publish(A, number, sender=SENDER)
    async with asyncio.timeout(PATIENCE_SECS):
        await relay.idle()
    letters = await relay.dead_letters(A)
    assert [letter.code for letter in letters] == ["handler_failed"] * 2
    assert all(reason in letter.reason and len(letter.reason) <= 2000 for letter in letters)
    assert [span.status for span in await relay.trace(letters[0].message_id)] == ["failed"]
    await subscription.close()


@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "sync"])
async def test_a_handler_that_takes_too_long_is_a_timeout(in_thread: bool, data_dir: Path) -> None:
    config = RelayConfig(durability="os", dispatch=DispatchConfig(handler_timeout_ms=20))
    go_on = threading.Event()

    async def wait_on_loop(envelope: Envelope) -> None:
        await asyncio.Event().wait()

    def wait_in_thread(envelope: Envelope) -> None:
        go_on.wait(PATIENCE_SECS)

    async with RelayCore(data_dir, config) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, wait_in_thread if in_thread else wait_on_loop)
        await relay.publish(A, 1, sender=SENDER)
        await relay.idle()
        go_on.set()
        assert [letter.code for letter in await relay.dead_letters()] == ["timeout"]


async def test_close_receives_nothing_more_and_the_mail_waits(relay: RelayCore) -> None:
    seen = Seen()
    subscription = await relay.subscribe("relay.agent.*", seen.take)
    await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    await subscription.close()
    await subscription.close()
    await relay.publish(A, 2, sender=SENDER)
    await relay.idle()
    assert seen.payloads == [1]
    assert [message.payload for message in await relay.inbox(A)] == [2]
    assert relay.subscriptions() == []


async def test_a_message_under_way_is_finished_after_close(relay: RelayCore) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        entered.set()
        await go_on.wait()

    subscription = await relay.subscribe(A, handle)
    result = await relay.publish(A, 1, sender=SENDER)
    await relay.publish(A, 2, sender=SENDER)
    await entered.wait()
    await subscription.close()
    go_on.set()
    await relay.idle()
    assert [span.status for span in await relay.trace(result.message_id)] == ["done"]
    assert [message.payload for message in await relay.inbox(A)] == [2]


async def test_async_with_ends_the_subscription_also_on_an_error(relay: RelayCore) -> None:
    async with await relay.subscribe(A, Seen().take) as subscription:
        assert relay.subscriptions() == [subscription]
    assert relay.subscriptions() == []

    async def fail() -> None:
        async with await relay.subscribe(A, Seen().take):
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert relay.subscriptions() == []


async def test_a_late_subscriber_drains_the_backlog_in_order(relay: RelayCore) -> None:
    for number in range(20):
        await relay.publish(A, number, sender=SENDER)
    seen = Seen()
    await relay.subscribe("relay.>", seen.take)
    await relay.idle()
    assert seen.payloads == list(range(20))


async def test_subscriptions_are_listed_oldest_first_and_never_restored(data_dir: Path) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        made = [await relay.subscribe(pattern, Seen().take) for pattern in ("relay.b.>", "relay.a", "relay.*.c")]
        assert [subscription.pattern for subscription in relay.subscriptions()] == ["relay.b.>", "relay.a", "relay.*.c"]
        assert [subscription.id for subscription in relay.subscriptions()] == sorted(
            subscription.id for subscription in made
        )
        assert made[0].name == "Seen.take"
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        assert relay.subscriptions() == []


@pytest.mark.parametrize("pattern", ["", "relay..a", "relay.>.a", "relay.a b", "relay." + "x" * 300])
async def test_a_bad_pattern_is_refused_and_leaves_nothing(pattern: str, relay: RelayCore) -> None:
    with pytest.raises(InvalidSubject):
        await relay.subscribe(pattern, Seen().take)
    assert relay.subscriptions() == []


async def test_what_cannot_be_called_is_refused(relay: RelayCore) -> None:
    with pytest.raises(TypeError, match="a handler must be callable, not int"):
        await relay.subscribe(A, 5)  # type: ignore[arg-type]
    assert relay.subscriptions() == []


async def test_a_closed_bus_takes_no_subscription_and_closing_one_of_it_is_harmless(data_dir: Path) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        subscription = await relay.subscribe(A, Seen().take)
    with pytest.raises(Closed):
        await relay.subscribe(A, Seen().take)
    await subscription.close()


def test_the_version_changes_only_when_something_does() -> None:
    subscriptions = Subscriptions()
    subscription = subscriptions.add("1", "relay.*", "", Seen().take)
    assert (subscriptions.version, len(subscriptions)) == (1, 1)
    assert subscriptions.match("relay.a") == [subscription]
    subscriptions.remove(subscription)
    subscriptions.remove(subscription)
    assert (subscriptions.version, len(subscriptions)) == (2, 0)
    subscriptions.close()


async def test_the_same_handler_twice_is_two_subscriptions(relay: RelayCore) -> None:
    seen = Seen()
    first = await relay.subscribe(A, seen.take_async)
    await relay.subscribe(A, seen.take_async)
    await relay.publish(A, 1, sender=SENDER)
    await relay.idle()
    await first.close()
    await relay.publish(A, 2, sender=SENDER)
    await relay.idle()
    assert seen.payloads == [1, 1, 2]


async def test_thousands_of_subscriptions_give_their_memory_back(data_dir: Path) -> None:
    """Objects are counted, not bytes: what an emptied table keeps is its own size."""

    async def handle(envelope: object) -> None:
        raise AssertionError("nothing is published")

    def tables(relay: RelayCore) -> list[int]:
        subscriptions = relay.bus.subscriptions
        return [sys.getsizeof(subscriptions._trie._root.literals), sys.getsizeof(subscriptions.pools._pools)]

    def alive() -> int:
        gc.collect()
        return sum(isinstance(value, Subscription | Pool | _Level) for value in gc.get_objects())

    async with RelayCore(data_dir, RelayConfig(durability="os")) as relay:
        before = alive()
        made = [await relay.subscribe(f"x{n}.>", handle, queue=f"q{n}" if n % 2 else None) for n in range(10_000)]
        assert alive() > before + 10_000
        for subscription in made:
            await subscription.close()
        del made, subscription
        assert alive() == before
        assert max(tables(relay)) <= sys.getsizeof({"one": 1})
    for remembering in (subjects._is_subject, subjects._subject_hash):
        assert remembering.cache_info().currsize <= 4096

"""Messages are begun and ended in batches: one append for a turn, before any of its handlers, and no task for each."""

from __future__ import annotations

import asyncio
import gc
import resource
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from relay_core import Envelope, RelayCore
from relay_core.dispatch.consumer import Ack, Requeue
from relay_core.messages.subjects import subject_hash
from relay_core.storage.stored_message import StoredMessage
from relay_core.testing import FakeClock
from tests.kit.bus import SENDER, A, B, C, a_bus, assert_counts_match_files, config, files, publish_all, span
from tests.kit.handlers import Listener
from tests.kit.waiting import until

SUBJECTS = [f"relay.many.n{number}" for number in range(10)]


class Appends:
    """The ops that each append to the journal writes."""

    def __init__(self, relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops: list[list[tuple[str, str]]] = []
        self.begun: set[tuple[str, str]] = set()
        """The mailboxes and ids of the begun messages."""
        journal = relay.bus.journal
        append = journal.append

        def noting(lines: Sequence[bytes], *, hold: int | None = None) -> None:
            append(lines, hold=hold)
            ops = [op for line in lines for op in orjson.loads(line)["ops"]]
            self.ops.append([(op, id) for op, _, id, *_ in ops])
            self.begun.update((mailbox, id) for op, mailbox, id, *_ in ops if op == "begun")

        monkeypatch.setattr(journal, "append", noting)

    @property
    def kinds(self) -> list[list[str]]:
        """Return the kinds of claims and ends in each append that has any."""
        noted = [[op for op, _ in ops if op != "new"] for ops in self.ops]
        return [kinds for kinds in noted if kinds]


class Push:
    """A consumer that messages are handed over to, and that reports when the test lets it."""

    hands_over = True

    def __init__(self) -> None:
        self.held: list[tuple[StoredMessage, Ack]] = []
        self.abandoned = 0

    def __call__(self, message: StoredMessage, ack: Ack) -> None:
        ack.on_abandoned = self._abandon
        self.held.append((message, ack))

    def _abandon(self) -> None:
        self.abandoned += 1

    @property
    def payloads(self) -> list[Any]:
        return [message.envelope.payload for message, _ in self.held]

    def take(self) -> list[Ack]:
        """Return the acks of the messages it holds."""
        held, self.held = self.held, []
        return [ack for _, ack in held]


@pytest.fixture
def appends(relay: RelayCore, monkeypatch: pytest.MonkeyPatch) -> Appends:
    return Appends(relay, monkeypatch)


@contextmanager
def a_journal_that_takes_nothing() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The record


async def test_the_messages_of_a_turn_are_begun_by_one_append_and_ended_by_another(
    relay: RelayCore, appends: Appends
) -> None:
    listener = Listener()
    for subject in SUBJECTS:
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, listener)
    await relay.publish("relay.many.*", 1, sender=SENDER)
    await relay.idle()
    assert len(listener.got) == 10
    assert appends.kinds == [["begun"] * 10, ["gone"] * 10]


async def test_an_end_and_the_next_beginning_of_a_mailbox_share_an_append(relay: RelayCore, appends: Appends) -> None:
    await relay.register_endpoint(A)
    ids = await publish_all(relay, A, [1, 2, 3])
    await relay.subscribe(A, Listener())
    await relay.idle()
    one, two, three = ids
    assert appends.ops[3:] == [
        [("begun", one)],
        [("gone", one), ("begun", two)],
        [("gone", two), ("begun", three)],
        [("gone", three)],
    ]


@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_no_handler_runs_before_its_beginning_is_recorded(
    data_dir: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[bool] = []
    async with RelayCore(data_dir, config(durability)) as relay:
        appends = Appends(relay, monkeypatch)

        async def handler(envelope: Envelope) -> None:
            recorded.append((subject_hash(envelope.subject), envelope.id) in appends.begun)

        for subject in (A, B, C):
            await relay.register_endpoint(subject)
            await relay.subscribe(subject, handler)
        await asyncio.gather(*(relay.publish("relay.agent.*", number, sender=SENDER) for number in range(20)))
        await relay.idle()
    assert recorded == [True] * 60


async def test_acks_of_one_turn_are_recorded_together_and_before_the_next_messages(
    relay: RelayCore, appends: Appends
) -> None:
    push = Push()
    for subject in SUBJECTS:
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, push, max_in_flight=1)
    for number in (1, 2):
        await relay.publish("relay.many.*", number, sender=SENDER)
    await until(lambda: len(push.held) == 10)
    assert len(relay.bus.tasks) == 0  # none of them costs a task
    appends.ops.clear()
    for ack in push.take():
        ack.soon()
    assert appends.ops == []
    await until(lambda: len(push.held) == 10)
    assert push.payloads == [2] * 10
    assert appends.kinds == [["gone"] * 10 + ["begun"] * 10]
    for ack in push.take():
        ack.soon()
    await relay.idle()
    assert appends.kinds[1:] == [["gone"] * 10]


async def test_an_ack_that_is_called_is_recorded_when_it_returns(
    relay: RelayCore, appends: Appends, data_dir: Path
) -> None:
    push = Push()
    await relay.register_endpoint(A)
    await relay.subscribe(A, push)
    (message_id,) = await publish_all(relay, A, [1])
    await until(lambda: push.held)
    (ack,) = push.take()
    with a_journal_that_takes_nothing(), pytest.raises(OSError, match="too large"):
        ack()
    assert relay.mailboxes()[0].claimed == 1
    ack()
    assert appends.ops[-1] == [("gone", message_id)]
    await relay.idle()
    assert (await span(relay, message_id)).status == "done"
    assert_counts_match_files(relay, data_dir)


async def test_messages_whose_beginning_cannot_be_recorded_are_retried_and_no_handler_sees_them(
    data_dir: Path, clock: FakeClock
) -> None:
    listener = Listener()
    async with a_bus(data_dir, clock, config("fsync"), endpoints=[A, B]) as relay:
        for subject in (A, B):
            await publish_all(relay, subject, [1, 2])
        await relay.idle()
        with a_journal_that_takes_nothing():
            for subject in (A, B):
                await relay.subscribe(subject, listener)
            await relay.idle()
            assert [(state.depth, state.claimed) for state in relay.mailboxes()] == [(2, 0), (2, 0)]
        assert listener.got == []
        clock.advance(1)
        await relay.idle()
        assert sorted(listener.got) == [1, 1, 2, 2]
        assert await relay.dead_letters() == []
        assert_counts_match_files(relay, data_dir)


async def test_an_end_that_cannot_be_recorded_is_retried_and_the_next_message_waits(
    data_dir: Path, clock: FakeClock
) -> None:
    push = Push()
    async with a_bus(data_dir, clock, config("fsync"), endpoints=[A]) as relay:
        await relay.subscribe(A, push)
        ids = await publish_all(relay, A, [1, 2])
        await until(lambda: push.held)
        with a_journal_that_takes_nothing():
            push.take()[0].soon()
            await until(lambda: relay.mailboxes()[0].degraded)
            assert [(state.depth, state.claimed) for state in relay.mailboxes()] == [(1, 1)]

        def is_begun() -> bool:
            clock.advance(1)
            return bool(push.held)

        await until(is_begun)
        push.take()[0].soon()
        await relay.idle()
        assert [(await span(relay, id)).status for id in ids] == ["done", "done"]


# Handlers that wait


async def test_a_handler_that_waits_keeps_its_task_and_delays_no_other_of_its_turn(relay: RelayCore) -> None:
    tasks: dict[str, list[asyncio.Task[Any] | None]] = {}
    go_on = asyncio.Event()

    async def handler(envelope: Envelope) -> None:
        steps = tasks.setdefault(envelope.subject, [asyncio.current_task()])
        if envelope.subject != B:
            async with asyncio.timeout(30):  # it would cancel the task that it was entered in
                await go_on.wait()
        steps.append(asyncio.current_task())

    for subject in (A, B, C):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, handler)
    await relay.publish("relay.agent.*", 1, sender=SENDER)
    await until(lambda: [state.claimed for state in relay.mailboxes()] == [1, 0, 1])
    assert len(tasks) == 3
    go_on.set()
    await relay.idle()
    assert all(first is last for first, last in tasks.values())
    assert tasks[A][0] is not tasks[C][0]


async def test_a_timeout_within_a_handler_ends_that_handler_alone(relay: RelayCore) -> None:
    forever, others = asyncio.Event(), Listener()

    async def impatient(envelope: Envelope) -> None:
        async with asyncio.timeout(0.01):
            await forever.wait()

    for subject, handler in ((A, impatient), (B, others), (C, others)):
        await relay.register_endpoint(subject)
        await relay.subscribe(subject, handler)
    await relay.publish("relay.agent.*", 1, sender=SENDER)
    await relay.idle()
    assert others.got == [1, 1]
    (letter,) = await relay.dead_letters()
    assert letter.code == "handler_failed"


# Messages that are handed over


@pytest.mark.parametrize(
    ("report", "code"),
    [
        pytest.param(lambda ack: ack.fail(ValueError("no")), "handler_failed", id="failed"),
        pytest.param(lambda ack: ack.fail(Requeue("not now")), None, id="requeued"),
    ],
)
async def test_a_consumer_reports_a_failure_or_returns_the_message(
    relay: RelayCore, data_dir: Path, report: Callable[[Ack], None], code: str | None
) -> None:
    push = Push()
    await relay.register_endpoint(A)
    await relay.subscribe(A, push)
    await publish_all(relay, A, [1, 2])
    await until(lambda: push.held)
    report(push.take()[0])
    await until(lambda: push.held)
    assert push.payloads == ([2] if code else [1])
    while push.held:
        push.take()[0].soon()
        await asyncio.sleep(0.001)
    await relay.idle()
    assert [letter.code for letter in await relay.dead_letters()] == ([code] if code else [])
    assert_counts_match_files(relay, data_dir)


async def test_a_report_that_does_not_come_in_time_is_a_timeout_and_comes_too_late_afterwards(
    data_dir: Path, clock: FakeClock
) -> None:
    push = Push()
    async with a_bus(data_dir, clock, config(handler_timeout_ms=5_000), endpoints=[A, B]) as relay:
        await relay.subscribe("relay.agent.*", push)
        await publish_all(relay, A, [1])
        await until(lambda: len(push.held) == 1)
        clock.advance(4)
        await publish_all(relay, B, [2])
        await until(lambda: len(push.held) == 2)
        clock.advance(1)
        await until(lambda: push.abandoned == 1)
        first, second = push.take()
        for ack in (first, second):
            ack.soon()
        await relay.idle()
        (letter,) = await relay.dead_letters()
        assert (letter.code, letter.envelope and letter.envelope.payload) == ("timeout", 1)
        assert letter.reason.endswith("no answer within 5 s")
        clock.advance(60)
        assert push.abandoned == 1


async def test_closing_ends_a_message_that_no_report_comes_for(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay_core.bus.CLOSE_GRACE_SECS", 0.05)
    push = Push()
    async with RelayCore(data_dir, config("fsync")) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, push)
        first, second = await publish_all(relay, A, [1, 2])
        await until(lambda: push.held)
    assert push.abandoned == 1
    assert (files(data_dir, A, "failed"), files(data_dir, A, "new")) == ([first], [second])
    async with RelayCore(data_dir, config("fsync")) as relay:
        (letter,) = await relay.dead_letters()
        assert (letter.code, letter.reason) == ("interrupted", "the bus was closed meanwhile")


async def test_closing_waits_for_the_report_of_a_message_in_flight(data_dir: Path) -> None:
    push = Push()
    async with RelayCore(data_dir, config()) as relay:
        await relay.register_endpoint(A)
        await relay.subscribe(A, push)
        await publish_all(relay, A, [1, 2])
        await until(lambda: push.held)
        asyncio.get_running_loop().call_later(0.05, push.held[0][1].soon)
    async with RelayCore(data_dir, config()) as relay:
        assert await relay.dead_letters() == []
        assert [envelope.payload for envelope in await relay.inbox(A)] == [2]


async def test_a_handled_message_is_freed_without_garbage_collection(relay: RelayCore) -> None:
    push = Push()
    await relay.register_endpoint(A)
    await relay.subscribe(A, push)
    gc.collect()
    gc.disable()
    try:
        await publish_all(relay, A, [1])
        await until(lambda: push.held)
        there = weakref.ref(push.held[0][0].envelope)
        push.take()[0].soon()
        await relay.idle()
        await until(lambda: there() is None)
    finally:
        gc.enable()

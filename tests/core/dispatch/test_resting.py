"""A message rests as a file; until then it is pending, and no caller sees the difference.

Each test of `TestNoDifference` runs twice: with messages that are pending all the time, and with files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from relay_core import Envelope, RelayCore
from relay_core.dispatch.consumer import Requeue
from relay_core.journal import file_writer
from relay_core.journal.segment import read_ops, read_segment, segments
from relay_core.messages.subjects import subject_hash
from relay_core.storage.mailbox import Mailbox
from relay_core.testing import FakeClock
from tests.kit.bus import (
    ALL,
    SENDER,
    A,
    B,
    C,
    a_bus,
    assert_counts_match_files,
    codes,
    config,
    depth,
    files,
    mailbox_dir,
    publish_all,
    span,
    write_files,
)
from tests.kit.handlers import Listener
from tests.kit.waiting import tasks_ended, until

HOUR = 3600.0


@pytest.fixture(params=["os", "fsync"])
async def relay(data_dir: Path, clock: FakeClock, request: pytest.FixtureRequest) -> AsyncIterator[RelayCore]:
    async with a_bus(data_dir, clock, config(request.param), endpoints=[A, B, C]) as relay:
        await tasks_ended("check index")  # it makes files of all messages
        yield relay


@pytest.fixture
def lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no message become a file by itself."""
    monkeypatch.setattr(file_writer, "LINGER_SECS", HOUR)


def mailbox_of(relay: RelayCore, subject: str) -> Mailbox:
    mailbox = relay.bus.mailboxes.get(subject_hash(subject))
    assert mailbox is not None
    return mailbox


def places(relay: RelayCore, data_dir: Path, subject: str = A) -> dict[str, list[str]]:
    """Return the files in each directory of a mailbox."""
    return {state: files(data_dir, subject, state) for state in ("tmp", "new", "cur", "failed")}


NOWHERE: dict[str, list[str]] = {"tmp": [], "new": [], "cur": [], "failed": []}


class TestBecomesAFile:
    @pytest.mark.usefixtures("lingering")
    async def test_a_message_that_is_handled_at_once_never_does(self, relay: RelayCore, data_dir: Path) -> None:
        directories = [mailbox_dir(data_dir, subject) / state for subject in (A, B, C) for state in ("new", "cur")]
        for directory in directories:
            os.utime(directory, (1, 1))  # a file that is made or removed changes it
        found: list[dict[str, list[str]]] = []
        pending: list[int] = []

        async def handle(envelope: Envelope) -> None:
            found.append(places(relay, data_dir, envelope.subject))
            pending.append(relay.bus.commits.files.waiting)

        for subject in (A, B, C):
            await relay.subscribe(subject, handle)
        await publish_all(relay, A, range(20))
        await publish_all(relay, ALL, range(20))
        await relay.bus.dispatch.idle()
        assert found == [NOWHERE] * 80
        assert all(pending)
        await relay.idle()
        assert [directory.stat().st_mtime for directory in directories] == [1] * 6
        writer = relay.bus.commits.files
        assert (writer.waiting, writer.oldest_secs, writer.is_idle) == (0, 0.0, True)
        assert_counts_match_files(relay, data_dir)

    async def test_a_message_that_waits_becomes_a_whole_private_file_by_itself(
        self, relay: RelayCore, data_dir: Path
    ) -> None:
        (message_id,) = await publish_all(relay, A, [{"n": 1}])
        await until(lambda: files(data_dir, A, "new") == [message_id])
        path = mailbox_dir(data_dir) / "new" / f"{message_id}.json"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (envelope,) = await relay.inbox(A)
        assert orjson.loads(path.read_bytes()) == envelope.to_wire()

    async def test_idle_means_that_what_rests_is_a_file(self, relay: RelayCore, data_dir: Path) -> None:
        ids = await publish_all(relay, A, range(30))
        await relay.idle()
        assert files(data_dir, A, "new") == ids
        assert mailbox_of(relay, A).maildir.pending == {}

    async def test_a_message_whose_handler_takes_long_becomes_one_in_cur(
        self, relay: RelayCore, data_dir: Path
    ) -> None:
        listener = Listener(held=True)
        await relay.subscribe(A, listener)
        first, second = await publish_all(relay, A, [1, 2])
        await listener.entered.wait()
        await until(lambda: places(relay, data_dir) == NOWHERE | {"new": [second], "cur": [first]})
        listener.gate.set()
        await relay.idle()
        assert places(relay, data_dir) == NOWHERE

    @pytest.mark.usefixtures("lingering")
    @pytest.mark.parametrize("ending", ["complete", "fail"])
    async def test_a_claimed_message_that_ends_never_does(self, relay: RelayCore, data_dir: Path, ending: str) -> None:
        (message_id,) = await publish_all(relay, A, [1])
        await relay.claim(A)
        await (relay.complete(A, message_id) if ending == "complete" else relay.fail(A, message_id, "no"))
        await relay.idle()
        assert places(relay, data_dir) == NOWHERE | {"failed": [message_id] if ending == "fail" else []}

    @pytest.mark.usefixtures("lingering")
    async def test_a_closed_bus_leaves_only_files(self, data_dir: Path, clock: FakeClock) -> None:
        async with a_bus(data_dir, clock, endpoints=[A]) as relay:
            ids = await publish_all(relay, A, range(5))
            await relay.claim(A, 2)
        assert (files(data_dir, A, "new"), files(data_dir, A, "cur")) == (ids[2:], ids[:2])
        assert [record for segment in segments(data_dir / "journal") for record in read_segment(*segment)] == []


Rest = Callable[[RelayCore], Awaitable[None]]


@pytest.fixture(params=["pending", "file"])
def rest(request: pytest.FixtureRequest, lingering: None) -> Rest:
    """Return a function that leaves all messages pending, or makes them files."""

    async def rest(relay: RelayCore) -> None:
        boxes = list(relay.bus.mailboxes)
        assert any(box.maildir.pending for box in boxes)
        if request.param == "file":
            await relay.idle()
            assert not any(box.maildir.pending for box in boxes)

    return rest


class TestNoDifference:
    async def test_inbox_and_peek(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        ids = await publish_all(relay, A, [{"n": number} for number in range(5)])
        await rest(relay)
        found = await relay.inbox(A)
        assert [(envelope.id, envelope.payload) for envelope in found] == [
            (message_id, {"n": number}) for number, message_id in enumerate(ids)
        ]
        assert {(envelope.subject, envelope.sender, envelope.budget.hop_count) for envelope in found} == {
            (A, SENDER, 1)
        }
        assert [envelope.id for envelope in await relay.inbox(A, 2, after=ids[1])] == ids[2:4]
        assert [envelope.id for envelope in await relay.inbox(A, room=1)] == ids[:1]
        assert await relay.wait_inbox(A, after=ids[3]) == ids[4:]
        assert_counts_match_files(relay, data_dir)

    async def test_waiting_for_an_answer(self, relay: RelayCore, rest: Rest) -> None:
        asked, _ = await publish_all(relay, B, ["question", "other"])
        answer = await relay.publish(A, "answer", sender=B, parent_id=asked)
        await rest(relay)
        assert await relay.wait_inbox(A, answer_to=asked) == [answer.message_id]

    async def test_claim_in_order_and_by_id(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        ids = await publish_all(relay, A, range(4))
        await rest(relay)
        assert [envelope.payload for envelope in await relay.claim(A, ids=[ids[2]])] == [2]
        assert await relay.claim(A, ids=[ids[2]]) == []
        assert [envelope.payload for envelope in await relay.claim(A, 2)] == [0, 1]
        assert [envelope.payload for envelope in await relay.inbox(A)] == [3]
        assert_counts_match_files(relay, data_dir)
        assert (files(data_dir, A, "new"), files(data_dir, A, "cur")) == (ids[3:], ids[:3])

    async def test_complete(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        first, second = await publish_all(relay, A, [1, 2])
        await relay.claim(A)
        await rest(relay)
        assert await relay.complete(A, first) is False
        assert (await span(relay, first)).status == "done"
        assert_counts_match_files(relay, data_dir)
        assert places(relay, data_dir) == NOWHERE | {"new": [second]}

    async def test_fail(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        first, second = await publish_all(relay, A, [{"n": 1}, 2])
        (claimed,) = await relay.claim(A)
        await rest(relay)
        await relay.fail(A, first, "no good")
        (letter,) = await relay.dead_letters()
        assert (letter.message_id, letter.reason, letter.envelope) == (first, "no good", claimed)
        assert_counts_match_files(relay, data_dir)
        assert places(relay, data_dir) == NOWHERE | {"new": [second], "failed": [first]}

    async def test_requeue(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        ids = await publish_all(relay, A, [1, 2])
        await rest(relay)
        await self.requeue_first(relay, ids)
        assert_counts_match_files(relay, data_dir)

    @pytest.mark.usefixtures("lingering")
    async def test_requeue_of_a_message_that_became_a_file_after_its_claim(
        self, relay: RelayCore, data_dir: Path
    ) -> None:
        ids = await publish_all(relay, A, [1, 2])
        await self.requeue_first(relay, ids, write_files)
        assert_counts_match_files(relay, data_dir)

    @staticmethod
    async def requeue_first(relay: RelayCore, ids: list[str], before: Rest | None = None) -> None:
        refused: list[str] = []

        async def refuse(envelope: Envelope) -> None:
            refused.append(envelope.id)
            relay.stop_dispatch()
            if before is not None:
                await before(relay)
            raise Requeue("not now")

        await relay.subscribe(A, refuse)
        await relay.bus.dispatch.idle()
        assert refused == ids[:1]
        assert depth(relay) == 2
        assert [envelope.id for envelope in await relay.inbox(A)] == ids
        assert [envelope.id for envelope in await relay.claim(A, 2)] == ids

    async def test_depth_and_pressure(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        await publish_all(relay, A, range(7))
        await relay.claim(A, 3)
        await rest(relay)
        (state,) = [state for state in relay.mailboxes() if state.subject == A]
        assert (relay.depth(A), state.depth, state.claimed, state.failed, state.degraded) == (4, 4, 3, 0, None)
        assert state.pressure == 4 / relay.bus.config.reliability.backpressure.max_mailbox_size
        assert_counts_match_files(relay, data_dir)

    async def test_trace(self, relay: RelayCore, rest: Rest) -> None:
        first, second = await publish_all(relay, A, [1, 2])
        await relay.claim(A)
        await rest(relay)
        assert ((await span(relay, first)).status, (await span(relay, second)).status) == ("cur", "new")

    async def test_a_subscription_gets_the_backlog_in_order(self, relay: RelayCore, rest: Rest, data_dir: Path) -> None:
        await publish_all(relay, A, range(10))
        await rest(relay)
        listener = Listener()
        await relay.subscribe(A, listener)
        await relay.idle()
        assert listener.got == list(range(10))
        assert places(relay, data_dir) == NOWHERE

    async def test_expiry(self, relay: RelayCore, rest: Rest, clock: FakeClock, data_dir: Path) -> None:
        await publish_all(relay, A, [1])
        await rest(relay)
        clock.advance(HOUR + 1)
        assert await relay.maintenance.expire() == 1
        assert await codes(relay) == ["expired"]
        assert_counts_match_files(relay, data_dir)

    @pytest.mark.parametrize("then", ["claimed", "replayed again"])
    async def test_replay(self, relay: RelayCore, rest: Rest, data_dir: Path, then: str) -> None:
        (message_id,) = await publish_all(relay, A, [{"n": 1}])
        await relay.claim(A)
        await relay.fail(A, message_id, "no")
        assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
        await rest(relay)
        assert [(envelope.id, envelope.replays) for envelope in await relay.inbox(A)] == [(message_id, 1)]
        assert await relay.dead_letters() == []
        (claimed,) = await relay.claim(A)
        assert (claimed.id, claimed.payload, claimed.replays) == (message_id, {"n": 1}, 1)
        if then == "claimed":
            await relay.complete(A, message_id)
            assert (await span(relay, message_id)).status == "done"
        else:
            await relay.fail(A, message_id, "again")
            assert (await relay.run_replay((await relay.plan_replay()).id)).delivered == 1
            assert [envelope.replays for envelope in await relay.inbox(A)] == [2]
        assert_counts_match_files(relay, data_dir)
        assert files(data_dir, A, "failed") == []

    @pytest.mark.parametrize("job", ["rebuild", "reconcile"])
    async def test_rebuilding_the_index(self, relay: RelayCore, rest: Rest, data_dir: Path, job: str) -> None:
        waiting, claimed, broadcast = (
            *await publish_all(relay, A, [1]),
            *await publish_all(relay, B, [2]),
            *await publish_all(relay, ALL, [3]),
        )
        await relay.claim(B)
        await rest(relay)
        if job == "rebuild":
            await relay.rebuild_index()
        else:
            await relay.bus.index.run(lambda db: db.execute("DELETE FROM deliveries"))
            assert await relay.bus.index.run(relay.bus.reindexer.reconcile) == {"added": 5, "ended": 0}
        assert ((await span(relay, waiting)).status, (await span(relay, claimed, B)).status) == ("new", "cur")
        assert {found.target_subject: found.status for found in await relay.trace(broadcast)} == {
            A: "new",
            B: "new",
            C: "new",
        }
        assert await relay.bus.index.run(relay.bus.reindexer.reconcile) == {"added": 0, "ended": 0}
        assert_counts_match_files(relay, data_dir)

    @pytest.mark.parametrize("way", ["closed", "killed"])
    async def test_a_restart(
        self, relay: RelayCore, rest: Rest, data_dir: Path, tmp_path: Path, clock: FakeClock, way: str
    ) -> None:
        ids = await publish_all(relay, A, range(4))
        done, interrupted = [envelope.id for envelope in await relay.claim(A, 2)]
        await rest(relay)
        await relay.complete(A, done)
        copy = tmp_path / "copy"
        if way == "closed":
            await relay.close()
        await asyncio.to_thread(shutil.copytree, data_dir, copy)
        async with a_bus(copy, clock) as again:
            assert [envelope.id for envelope in await again.inbox(A)] == ids[2:]
            assert [(letter.message_id, letter.code) for letter in await again.dead_letters()] == [
                (interrupted, "interrupted")
            ]
            assert_counts_match_files(again, copy)


class TestFanout:
    @pytest.mark.usefixtures("lingering")
    async def test_it_is_one_record_with_one_payload(self, relay: RelayCore, data_dir: Path) -> None:
        payload = {"content": "needle"}
        (message_id,) = await publish_all(relay, ALL, [payload])
        ((sequence, path),) = segments(data_dir / "journal")
        (record,) = read_segment(sequence, path)
        assert path.read_bytes().count(b"needle") == 1
        assert record["message"]["payload"] == payload
        copies = {mailbox: data for op, mailbox, _, data in read_ops(record) if op == "new"}
        assert copies.keys() == {subject_hash(subject) for subject in (A, B, C)}
        await write_files(relay)
        for subject in (A, B, C):
            (envelope,) = await relay.inbox(subject)
            assert (envelope.id, envelope.subject, envelope.budget.ancestor_chain) == (message_id, subject, (subject,))
            file = mailbox_dir(data_dir, subject) / "new" / f"{message_id}.json"
            assert orjson.loads(file.read_bytes()) == copies[subject_hash(subject)] == envelope.to_wire()

    @pytest.mark.usefixtures("lingering")
    async def test_a_file_is_made_only_for_the_target_where_it_has_to_rest(
        self, relay: RelayCore, data_dir: Path
    ) -> None:
        listener = Listener()
        for subject in (A, B):
            await relay.subscribe(subject, listener)
            for state in ("new", "cur"):
                os.utime(mailbox_dir(data_dir, subject) / state, (1, 1))
        (message_id,) = await publish_all(relay, ALL, [1])
        await relay.idle()
        assert listener.ids == [message_id] * 2
        assert places(relay, data_dir, C) == NOWHERE | {"new": [message_id]}
        for subject in (A, B):
            assert {(mailbox_dir(data_dir, subject) / state).stat().st_mtime for state in ("new", "cur")} == {1}


def remove_mailbox(box: Path) -> None:
    shutil.rmtree(box)


def remove_new(box: Path) -> None:
    (box / "new").rmdir()


def block_new(box: Path) -> None:
    (box / "new").rmdir()
    (box / "new").write_bytes(b"in the way")


def block_tmp(box: Path) -> None:
    (box / "tmp").rmdir()
    (box / "tmp").write_bytes(b"in the way")


def unblock(box: Path) -> None:
    for name in ("new", "tmp"):
        if (box / name).is_file():
            (box / name).unlink()
            (box / name).mkdir(mode=0o700)


@pytest.mark.usefixtures("lingering")
class TestDamagedMailbox:
    """The directory of a mailbox is no condition for a publish: the journal has the message."""

    @pytest.mark.parametrize("remove", [remove_mailbox, remove_new])
    async def test_removed_directories_are_made_again(
        self, relay: RelayCore, data_dir: Path, remove: Callable[[Path], None]
    ) -> None:
        await asyncio.to_thread(remove, mailbox_dir(data_dir))
        result = await relay.publish(ALL, 1, sender=SENDER)
        assert (result.delivered_to, result.rejected) == (3, None)
        await relay.idle()
        assert files(data_dir, A, "new") == [result.message_id]
        assert [state.degraded for state in relay.mailboxes()] == [None] * 3
        assert [envelope.payload for envelope in await relay.claim(A)] == [1]
        await relay.complete(A, result.message_id)
        assert_counts_match_files(relay, data_dir)

    @pytest.mark.parametrize("block", [block_new, block_tmp])
    async def test_a_file_in_the_way_is_shown_and_the_message_written_once_it_is_gone(
        self, relay: RelayCore, data_dir: Path, block: Callable[[Path], None]
    ) -> None:
        await asyncio.to_thread(block, mailbox_dir(data_dir))
        result = await relay.publish(ALL, 1, sender=SENDER)
        assert (result.delivered_to, result.rejected) == (3, None)
        await relay.idle()
        problems = {state.subject: state.degraded for state in relay.mailboxes()}
        assert "files cannot be written" in (problems.pop(A) or "")
        assert problems == {B: None, C: None}
        assert relay.bus.commits.files.waiting == 1
        assert files(data_dir, B, "new") == files(data_dir, C, "new") == [result.message_id]
        assert [envelope.id for envelope in await relay.inbox(A)] == [result.message_id]
        await asyncio.to_thread(unblock, mailbox_dir(data_dir))
        await relay.idle()
        assert files(data_dir, A, "new") == [result.message_id]
        assert [state.degraded for state in relay.mailboxes()] == [None] * 3
        assert [envelope.payload for envelope in await relay.claim(A)] == [1]
        assert_counts_match_files(relay, data_dir)

    @pytest.mark.parametrize("block", [block_new, block_tmp])
    async def test_messages_are_delivered_all_the_same(
        self, relay: RelayCore, data_dir: Path, block: Callable[[Path], None]
    ) -> None:
        await asyncio.to_thread(block, mailbox_dir(data_dir))
        await publish_all(relay, A, [1, 2])
        await relay.idle()
        listener = Listener()
        await relay.subscribe(A, listener)
        await publish_all(relay, A, [3])
        await relay.idle()
        assert listener.got == [1, 2, 3]
        assert [state.degraded for state in relay.mailboxes()] == [None] * 3
        assert relay.bus.commits.files.is_idle

    async def test_the_writer_tries_again_by_itself(
        self, data_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_writer, "LINGER_SECS", 0.001)
        monkeypatch.setattr(file_writer, "RETRY_SECS", 0.01)
        async with a_bus(data_dir, clock, endpoints=[A]) as relay:
            await asyncio.to_thread(block_new, mailbox_dir(data_dir))
            ids = await publish_all(relay, A, [1, 2])
            await until(lambda: relay.mailboxes()[0].degraded is not None)
            await asyncio.to_thread(unblock, mailbox_dir(data_dir))
            await until(lambda: files(data_dir, A, "new") == ids)
            await until(lambda: relay.mailboxes()[0].degraded is None)

    async def test_closing_meanwhile_keeps_the_journal_for_the_next_start(
        self, data_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with a_bus(data_dir, clock, endpoints=[A]) as relay:
            await asyncio.to_thread(block_new, mailbox_dir(data_dir))
            first, second = await publish_all(relay, A, [1, 2])
            await relay.claim(A)
        assert "journal kept for the next start: 1 messages exist only in the journal" in caplog.text.replace(
            "[Errno 5] ", ""
        )
        await asyncio.to_thread(unblock, mailbox_dir(data_dir))
        async with a_bus(data_dir, clock) as relay:
            assert [envelope.id for envelope in await relay.inbox(A)] == [second]
            assert [(letter.message_id, letter.code) for letter in await relay.dead_letters()] == [
                (first, "interrupted")
            ]
            assert_counts_match_files(relay, data_dir)

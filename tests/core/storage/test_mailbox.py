"""Mailbox: depth is the number of files in new/, first in is first out, and the claim on disk decides."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.messages.subjects import subject_hash
from relay_core.storage.endpoint_file import EndpointFile
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.maildir import CUR, FAILED, NEW, Maildir
from relay_core.storage.stored_message import BadFile, StoredMessage

SUBJECT = "a.b"
LIMIT = 5000


def message_id(number: int) -> str:
    return f"01HF00000000000000000{number:05d}"


def envelope(number: int) -> Envelope:
    return Envelope(
        id=message_id(number),
        subject=SUBJECT,
        sender="some.body",
        budget=Budget(ttl=1_800_000_000_000),
        created_at="2023-11-14T22:13:20.000Z",
        payload={"n": number},
    )


@pytest.fixture
def box(tmp_path: Path) -> Mailbox:
    return make(tmp_path)


def make(directory: Path) -> Mailbox:
    """Return the mailbox as a process finds it at its start."""
    about = EndpointFile(subject=SUBJECT, registered_at="2023-11-14T22:13:20.000Z")
    made = Mailbox(subject_hash(SUBJECT), about, Maildir(directory / "box"), read_limit=LIMIT)
    made.maildir.create(sync=False)
    return made


def put(box: Mailbox, *numbers: int) -> None:
    """Store messages as the bus does."""
    for number in numbers:
        box.reserved += 1
        box.maildir.write(message_id(number), encode_envelope(envelope(number)))
        box.arrived(message_id(number), None)


def drop(box: Mailbox, number: int) -> str:
    """Put a message into new/ as another process does; return its name."""
    name = f"{message_id(number)}.json"
    Path(box.maildir.new, name).write_bytes(encode_envelope(envelope(number)))
    return name


def claimed(box: Mailbox) -> list[int]:
    """Claim everything; return the numbers in order."""
    numbers = []
    while (item := box.claim_next()) is not None:
        assert isinstance(item, StoredMessage)
        numbers.append(item.envelope.payload["n"])
    return numbers


class TestDepth:
    def test_it_follows_every_move(self, box: Mailbox) -> None:
        put(box, 1, 2, 3)
        assert (box.depth, box.load) == (3, 3)
        item = box.claim_next()
        assert isinstance(item, StoredMessage)
        assert (box.depth, len(box.claimed)) == (2, 1)
        assert box.requeue(item)
        assert (box.depth, len(box.claimed)) == (3, 0)
        assert box.depth == len(box.maildir.ids(NEW))

    def test_reserved_room_counts_as_load_until_it_is_used(self, box: Mailbox) -> None:
        box.reserved += 2
        assert (box.depth, box.load) == (0, 2)
        put(box, 1)
        assert (box.depth, box.load) == (1, 3)
        box.reserved -= 2
        assert (box.depth, box.load) == (1, 1)

    def test_a_store_that_succeeds_ends_the_trouble(self, box: Mailbox) -> None:
        box.degraded = "the disk says no"
        put(box, 1)
        assert box.degraded is None

    def test_a_message_that_others_took_is_dropped_silently(self, box: Mailbox) -> None:
        put(box, 1, 2, 3)
        os.unlink(f"{box.maildir.new}{message_id(1)}.json")
        os.rename(f"{box.maildir.new}{message_id(2)}.json", f"{box.maildir.cur}{message_id(2)}.json")
        assert claimed(box) == [3]
        assert box.depth == 0

    def test_one_that_is_forgotten_is_not_offered(self, box: Mailbox) -> None:
        put(box, 1, 2)
        box.forget(message_id(1))
        assert box.depth == 1
        assert box.head() == message_id(2)


class TestOrder:
    def test_first_in_first_out(self, box: Mailbox) -> None:
        put(box, 3, 1, 2)
        assert box.waiting(10) == [message_id(number) for number in (3, 1, 2)]
        assert box.waiting(2) == [message_id(number) for number in (3, 1)]
        assert claimed(box) == [3, 1, 2]

    def test_a_requeued_message_is_next(self, box: Mailbox) -> None:
        put(box, 1, 2)
        item = box.claim_next()
        assert isinstance(item, StoredMessage)
        assert box.requeue(item)
        assert claimed(box) == [1, 2]

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_requeued_messages_keep_their_order_in_any_order_of_requeueing(
        self, box: Mailbox, order: tuple[int, ...]
    ) -> None:
        put(box, 1, 2, 3, 4)
        taken = [box.claim_next() for _ in range(3)]
        for message in order:
            item = taken[message]
            assert isinstance(item, StoredMessage)
            assert box.requeue(item)
        assert claimed(box) == [1, 2, 3, 4]

    def test_a_start_finds_everything_oldest_first(self, box: Mailbox, tmp_path: Path) -> None:
        put(box, 5, 3, 4)
        box.maildir.write_failed(message_id(9), b"{}")
        again = make(tmp_path)
        assert again.scan() == []
        assert (again.depth, again.dead, again.newest) == (3, 1, message_id(9))
        assert claimed(again) == [3, 4, 5]

    def test_only_ids_make_the_newest(self, box: Mailbox) -> None:
        put(box, 1)
        box.maildir.write_failed("zzz", b"{}")
        box.scan()
        assert box.newest == message_id(1)


class TestClaim:
    def test_a_claimed_message_is_held_with_its_delivery(self, box: Mailbox) -> None:
        put(box, 1)
        item = box.take(message_id(1))
        assert isinstance(item, StoredMessage)
        assert box.claimed == {message_id(1): item}
        assert item.envelope == envelope(1)
        assert item.data == encode_envelope(envelope(1))
        assert (item.delivery.status, item.delivery.target) == (CUR, box.hash)
        assert box.take(message_id(1)) is None
        assert box.maildir.whereabouts(message_id(1)) == {CUR}

    def test_a_message_kept_in_memory_is_not_read_back(self, box: Mailbox) -> None:
        box.is_handled = True
        assert box.wants(100)
        put(box, 1)
        kept = box.read(NEW, message_id(1))
        assert isinstance(kept, StoredMessage)
        box.reserved += 1
        box.arrived(message_id(1), kept)
        Path(box.maildir.new, f"{message_id(1)}.json").write_bytes(b"changed meanwhile")
        assert box.claim_next() is kept

    def test_messages_stay_in_memory_only_with_a_consumer_and_within_the_budget(self, box: Mailbox) -> None:
        assert not box.wants(1)
        box.is_handled = True
        assert not box.wants(1 << 30)

    def test_room_in_memory_comes_back(self, box: Mailbox) -> None:
        box.is_handled = True
        before = box.memory.left
        for number in range(3):
            put(box, number)
            kept = box.read(NEW, message_id(number))
            assert isinstance(kept, StoredMessage)
            box.reserved += 1
            box.arrived(message_id(number), kept)
        assert box.memory.left < before
        box.forget(message_id(0))
        box.claim_next()
        box.take(message_id(2))
        assert box.memory.left == before


class TestDrops:
    def test_a_dropped_file_is_known_once(self, box: Mailbox) -> None:
        name = drop(box, 1)
        for _ in range(3):
            assert box.discover([name]) == []
        assert box.depth == 1
        assert claimed(box) == [1]

    def test_one_that_is_claimed_already_is_not_new(self, box: Mailbox) -> None:
        put(box, 1)
        claimed(box)
        assert box.discover([f"{message_id(1)}.json"]) == []
        assert box.depth == 0

    def test_a_file_taken_after_it_was_listed_is_not_added(self, box: Mailbox) -> None:
        put(box, 1)
        seen = box.maildir.names(NEW)
        claimed(box)
        box.maildir.complete(message_id(1))
        box.claimed.clear()
        assert box.discover(seen) == []
        assert box.depth == 0

    def test_undiscovered_files_are_those_not_reported_yet(self, box: Mailbox) -> None:
        put(box, 2)
        names = [drop(box, 3), drop(box, 1)]
        Path(box.maildir.new, "hello").touch()
        assert box.undiscovered() == [*sorted(names), "hello"]
        box.discover(names)
        assert box.undiscovered() == ["hello"]

    @pytest.mark.parametrize(
        "name",
        ["hello.json", "hello", f"{message_id(1)}", f"{message_id(1)}.txt", f"{message_id(1).lower()}.json", "json"],
    )
    def test_a_name_that_is_no_id_is_no_message(self, box: Mailbox, name: str) -> None:
        (bad,) = box.discover([name])
        assert (bad.message_id, bad.state, bad.name) == ("", NEW, name)
        assert repr(name) in bad.problem
        assert box.depth == 0

    @pytest.mark.parametrize("name", [".hidden", f".{message_id(1)}.json", ".tmp.json"])
    def test_hidden_files_are_ignored(self, box: Mailbox, name: str) -> None:
        Path(box.maildir.new, name).touch()
        assert box.scan() == []
        assert box.discover([name]) == []
        assert box.depth == 0

    def test_what_was_set_aside_without_a_word_is_found(self, box: Mailbox) -> None:
        """A process that dies between the move and the record leaves the file alone in failed/."""
        for number in (1, 2):
            Path(box.maildir.failed, f"{message_id(number)}.original").touch()
        box.maildir.write_failed(message_id(2), b"{}")
        (bad,) = box.scan()
        assert (bad.message_id, bad.state, bad.name) == (message_id(1), FAILED, f"{message_id(1)}.original")


class TestRead:
    def test_what_is_not_there_is_not_found(self, box: Mailbox) -> None:
        with pytest.raises(FileNotFoundError):
            box.read(NEW, message_id(1))

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", "not JSON"),
            (b"\0" * 100, "not JSON"),
            (encode_envelope(envelope(1))[:-1], "not JSON"),
            (b"[1]", "envelope"),
            (b"{}", "id"),
            (b"\xff\xfe", "not JSON"),
            (encode_envelope(envelope(2)), "holds the id"),
            (b" " * (LIMIT + 1), "the limit is"),
            (encode_envelope(envelope(1)).replace(b'"a.b"', b'"a..b"'), "subject"),
        ],
        ids=["empty", "zeros", "truncated", "list", "no fields", "no text", "other id", "huge", "bad subject"],
    )
    def test_what_is_no_envelope_is_a_bad_file(self, box: Mailbox, content: bytes, problem: str) -> None:
        Path(box.maildir.new, f"{message_id(1)}.json").write_bytes(content)
        box.scan()
        bad = box.claim_next()
        assert isinstance(bad, BadFile)
        assert (bad.message_id, bad.state) == (message_id(1), CUR)
        assert problem in bad.problem
        assert (box.depth, box.claimed) == (0, {})

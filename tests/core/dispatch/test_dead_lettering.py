"""Dead-lettering: failed messages are kept with their reason, and one bad file never blocks a mailbox (P6)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from relay_core.clock import parse_iso
from relay_core.config import RelayConfig
from relay_core.core import RelayCore
from relay_core.journal.journal import Durability
from relay_core.journal.segment import read_ops, read_segment, segments
from relay_core.messages.dead_letter import Code, DeadLetter
from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.messages.ids import ulid_ms
from relay_core.messages.subjects import subject_hash
from tests.kit.handlers import Listener
from tests.kit.waiting import PATIENCE_SECS, until

SUBJECT = "a.b"


def message_id(number: int) -> str:
    return f"01HF00000000000000000{number:05d}"


BAD, GOOD, OTHER = message_id(1), message_id(2), message_id(3)


def stored(id: str) -> bytes:
    return encode_envelope(
        Envelope(
            id=id,
            subject=SUBJECT,
            sender="some.body",
            budget=Budget(ttl=4_000_000_000_000),
            created_at="2023-11-14T22:13:20.000Z",
            payload={"id": id},
        )
    )


def _bytes(data: bytes) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(data)

    return make


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


def _link(path: Path) -> None:
    target = path.parent / "valid"
    target.write_bytes(stored(BAD))
    path.symlink_to(target)


def _directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def _socket(path: Path) -> None:
    # A socket's path may be no longer than 107 bytes.
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def _foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path.write_bytes(stored(BAD))
    os.chown(path, 12345, 12345)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero has no end
    except PermissionError:
        pytest.skip("only root can make a device")


BAD_CONTENTS: dict[str, Callable[[Path], None]] = {
    "truncated": _bytes(stored(BAD)[:-10]),
    "empty": _bytes(b""),
    "zeroed": _bytes(bytes(4096)),
    "huge": _huge,
    "link": _link,
    "dangling link": lambda path: path.symlink_to("/nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
    "device": _device,
    "directory": _directory,
    "foreign": _foreign,
    "wrong id": _bytes(stored(OTHER)),
    "not JSON": _bytes(b"<message/>"),
    "not UTF-8": _bytes(b"\xff\xfe{}"),
    "a list": _bytes(b"[1, 2]"),
    "too deep": _bytes(b"[" * 100_000),
    "no envelope": _bytes(b"{}"),
}
BAD_NAMES = [
    "hello.json",
    "hello",
    f"{BAD}.txt",
    f"{BAD.lower()}.json",
    f"{'~' * 26}.json",
    f"{' ' * 26}.json",
    BAD,
    "x" * 250,
    b"\xff\xfe.json",
    b"\xff" * 26 + b".json",
    "a\nb.json",
]
FOUND_BY_READING = ("claim", "inbox", "handler")


class Drops:
    """Another process that delivers into a mailbox: by rename, as it should."""

    def __init__(self, data_dir: Path, outside: Path) -> None:
        self.mailbox = data_dir / "mailboxes" / subject_hash(SUBJECT)
        self._outside = outside

    def drop(self, name: str | bytes, make: Callable[[Path], None]) -> None:
        path = self._outside / "dropped"
        make(path)
        os.rename(path, os.path.join(os.fsencode(self.mailbox / "new"), os.fsencode(name)))

    def message(self, id: str) -> None:
        self.drop(f"{id}.json", _bytes(stored(id)))

    def names(self, state: str) -> list[str]:
        return sorted(os.listdir(self.mailbox / state))


@pytest.fixture
async def drops(data_dir: Path, tmp_path: Path) -> Drops:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        await core.register_endpoint(SUBJECT)
    outside = tmp_path / "outside"
    outside.mkdir()
    return Drops(data_dir, outside)


async def until_parked(core: RelayCore) -> list[DeadLetter]:
    """Return the dead letters once there are any."""
    async with asyncio.timeout(PATIENCE_SECS):
        while not (letters := await core.dead_letters()):
            pass
    return letters


async def check_parked(core: RelayCore, drops: Drops, letters: list[DeadLetter]) -> None:
    """Hold that one file was set aside with a reason, that nothing is left of it elsewhere, and that it can go."""
    (letter,) = letters
    assert (letter.code, letter.envelope, letter.endpoint_hash) == (Code.MALFORMED, None, subject_hash(SUBJECT))
    assert letter.reason
    assert drops.names("failed") == [f"{letter.message_id}.json", f"{letter.message_id}.original"]
    assert drops.names("new") == drops.names("cur") == drops.names("tmp") == []
    (box,) = core.mailboxes()
    assert (box.depth, box.claimed, box.failed) == (0, 0, 1)
    plan = await core.plan_replay([letter.message_id])
    assert [item.verdict for item in plan.items] == ["malformed"]
    assert await core.purge_dead_letters() == 1
    assert drops.names("failed") == []


async def take_good(core: RelayCore, way: str) -> list[str]:
    """Take the one good message; return the ids that were given out."""
    if way == "handler":
        listener = Listener()
        await core.subscribe(SUBJECT, listener)
        await until(lambda: GOOD in listener.ids)
        await core.idle()
        return listener.ids
    if way == "inbox":
        looked = [envelope.id for envelope in await core.inbox(SUBJECT)]
        assert [envelope.id for envelope in await core.claim(SUBJECT, limit=10)] == looked
    else:
        looked = [envelope.id for envelope in await core.claim(SUBJECT, limit=10)]
    for id in looked:
        await core.complete(SUBJECT, id)
    return looked


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("way", FOUND_BY_READING)
@pytest.mark.parametrize("kind", BAD_CONTENTS)
async def test_a_bad_file_found_at_the_start_is_quarantined_when_it_is_read(
    data_dir: Path, drops: Drops, kind: str, way: str, durability: Durability
) -> None:
    drops.drop(f"{BAD}.json", BAD_CONTENTS[kind])
    drops.message(GOOD)
    async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
        assert await take_good(core, way) == [GOOD]
        await check_parked(core, drops, await core.dead_letters())


@pytest.mark.parametrize("kind", BAD_CONTENTS)
async def test_a_bad_file_dropped_while_the_bus_runs_is_set_aside(data_dir: Path, drops: Drops, kind: str) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        listener = Listener()
        await core.subscribe(SUBJECT, listener)
        drops.drop(f"{BAD}.json", BAD_CONTENTS[kind])
        drops.message(GOOD)
        await until(lambda: GOOD in listener.ids)
        assert listener.ids == [GOOD]
        await core.idle()
        await check_parked(core, drops, await until_parked(core))


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_a_bad_name_found_at_the_start_is_set_aside(data_dir: Path, drops: Drops, name: str | bytes) -> None:
    drops.drop(name, _bytes(stored(BAD)))
    drops.message(GOOD)
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        assert len(core.mailboxes()) == 1
        assert await take_good(core, "claim") == [GOOD]
        await check_parked(core, drops, await core.dead_letters())


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_a_bad_name_dropped_while_the_bus_runs_is_set_aside(
    data_dir: Path, drops: Drops, name: str | bytes
) -> None:
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        drops.drop(name, _bytes(stored(BAD)))
        letters = await until_parked(core)
        await check_parked(core, drops, letters)


@pytest.mark.parametrize("way", ["claim", "inbox"])
async def test_an_id_from_far_ahead_is_not_the_newest_for_years(data_dir: Path, drops: Drops, way: str) -> None:
    drops.drop("01T5T000000000000000000000.json", _bytes(b"<message/>"))
    drops.message(GOOD)
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        if way == "inbox":
            assert [envelope.id for envelope in await core.inbox(SUBJECT)] == [GOOD]
            assert core.mailboxes()[0].depth == 1
        assert await take_good(core, way) == [GOOD]
        (found,) = letters = await core.dead_letters()
        assert abs(ulid_ms(found.message_id) - parse_iso(found.failed_at)) < 60_000
        await check_parked(core, drops, letters)


async def test_hidden_files_are_ignored(data_dir: Path, drops: Drops) -> None:
    for name in (".hidden", f".{BAD}.json", ".nfs0001"):
        drops.drop(name, _bytes(stored(BAD)))
    for _ in range(2):
        async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
            assert await core.claim(SUBJECT) == []
            assert await core.dead_letters() == []
            assert core.mailboxes()[0].depth == 0
    assert len(drops.names("new")) == 3


@pytest.mark.parametrize("kind", BAD_CONTENTS)
async def test_a_bad_file_left_in_cur_is_set_aside_at_the_start(data_dir: Path, drops: Drops, kind: str) -> None:
    drops.drop(f"{BAD}.json", BAD_CONTENTS[kind])
    os.rename(drops.mailbox / "new" / f"{BAD}.json", drops.mailbox / "cur" / f"{BAD}.json")
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        await check_parked(core, drops, await core.dead_letters())


async def test_a_bad_file_replaces_no_dead_letter(data_dir: Path, drops: Drops) -> None:
    """The same id may arrive twice: the first dead letter is not lost."""
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        drops.message(BAD)
        async with asyncio.timeout(PATIENCE_SECS):
            while not await core.inbox(SUBJECT):
                pass
        (found,) = await core.claim(SUBJECT)
        await core.fail(SUBJECT, found.id, "no good")
        drops.drop(f"{BAD}.json", _bytes(b"<message/>"))
        async with asyncio.timeout(PATIENCE_SECS):
            while len(letters := await core.dead_letters()) < 2:
                await core.inbox(SUBJECT)
        assert sorted(letter.code for letter in letters) == [Code.CONSUMER_FAILED, Code.MALFORMED]
        assert core.mailboxes()[0].failed == 2


async def test_a_quarantine_interrupted_by_a_kill_is_completed(data_dir: Path, drops: Drops) -> None:
    (drops.mailbox / "failed" / f"{BAD}.original").write_bytes(b"<message/>")
    async with RelayCore(data_dir, RelayConfig(durability="os")) as core:
        await check_parked(core, drops, await core.dead_letters())


@pytest.mark.parametrize("durability", ["os", "fsync"])
class TestParked:
    async def test_the_record_has_the_message_and_the_reason(self, data_dir: Path, durability: Durability) -> None:
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            endpoint = await core.register_endpoint(SUBJECT)
            result = await core.publish(SUBJECT, {"a": 1}, sender="some.body")
            (envelope,) = await core.claim(SUBJECT)
            await core.fail(SUBJECT, envelope.id, "no good")
            path = endpoint.maildir_path / "failed" / f"{result.message_id}.json"
            record = orjson.loads(path.read_bytes())
            assert record.keys() == {"envelope", "reason", "code", "failedAt", "endpointHash", "replays", "stage"}
            assert record["envelope"] == envelope.to_wire()
            assert (record["reason"], record["code"]) == ("no good", Code.CONSUMER_FAILED)
            assert (record["endpointHash"], record["replays"]) == (endpoint.hash, 0)
            (box,) = core.mailboxes()
            assert (box.depth, box.claimed, box.failed) == (0, 0, 1)

    async def test_what_a_dead_process_had_claimed_is_interrupted(self, data_dir: Path, durability: Durability) -> None:
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            await core.register_endpoint(SUBJECT)
            for number in range(3):
                await core.publish(SUBJECT, number, sender="some.body")
            (claimed,) = await core.claim(SUBJECT)
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            (letter,) = await core.dead_letters()
            assert (letter.message_id, letter.code) == (claimed.id, Code.INTERRUPTED)
            assert [envelope.payload for envelope in await core.inbox(SUBJECT)] == [1, 2]

    async def test_a_record_beside_a_claimed_message_stands(self, data_dir: Path, durability: Durability) -> None:
        """A kill between the record and the removal leaves both."""
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            endpoint = await core.register_endpoint(SUBJECT)
            await core.publish(SUBJECT, 1, sender="some.body")
            (envelope,) = await core.claim(SUBJECT)
            await core.fail(SUBJECT, envelope.id, "no good")
        (endpoint.maildir_path / "cur" / f"{envelope.id}.json").write_bytes(encode_envelope(envelope))
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            (letter,) = await core.dead_letters()
            assert (letter.code, letter.reason) == (Code.CONSUMER_FAILED, "no good")
            assert list((endpoint.maildir_path / "cur").iterdir()) == []

    async def test_a_message_that_others_laid_out_breaks_nothing(self, data_dir: Path, durability: Durability) -> None:
        """Pretty-printed JSON is JSON; its dead letter and what comes after it survive a restart."""
        pretty = orjson.dumps(orjson.loads(stored(BAD)), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            endpoint = await core.register_endpoint(SUBJECT)
        (endpoint.maildir_path / "new" / f"{BAD}.json").write_bytes(pretty)
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            await core.claim(SUBJECT)
            await core.fail(SUBJECT, BAD, "no good")
            await core.publish(SUBJECT, 2, sender="some.body", dedupe_id="one")
            ((sequence, path),) = segments(data_dir / "journal")
            ops = [op for record in read_segment(sequence, path) for op, *_ in read_ops(record)]
            assert ops == ["begun", "failed", "new"]
            assert len(path.read_bytes().rstrip(b"\0").splitlines()) == 1 + len(ops)
        async with RelayCore(data_dir, RelayConfig(durability=durability)) as core:
            (letter,) = await core.dead_letters()
            assert letter.envelope is not None
            assert letter.envelope.payload == {"id": BAD}

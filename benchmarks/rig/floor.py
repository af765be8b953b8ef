"""The floor: a bare loop that makes message files, the least that any Maildir costs.

It writes what the bus would store (an envelope of some 1,270 bytes under an increasing ULID), with full paths:
O_CREAT|O_EXCL in ``tmp/``, write, close, rename to ``new/``. With `sync` it also fsyncs the file before the rename, and
``new/`` after it, on a descriptor that stays open. The same loop fills mailboxes for cases that begin with stored
messages. `journal` is the floor of a bus that writes no files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from zlib import crc32

import orjson

from relay_core.clock import SystemClock, iso
from relay_core.config import DAY_MS
from relay_core.messages.envelope import Budget, Envelope, encode_envelope
from relay_core.messages.ids import UlidFactory
from relay_core.messages.subjects import subject_hash
from relay_core.storage.endpoint_file import EndpointFile, write_endpoint_file

PAYLOAD = {"content": "x" * 1000}
SENDER = "relay.bench.sender"
STATES = ("tmp", "new", "cur", "failed")

_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_CHUNK = 1000

_new_id = UlidFactory(SystemClock())


class Message(NamedTuple):
    id: str
    data: bytes


def messages(subject: str, count: int) -> list[Message]:
    """Return new messages as they are stored."""
    now = SystemClock().now_ms()
    blank = "0" * 26
    budget = Budget(hop_count=1, ancestor_chain=(SENDER,), ttl=now + DAY_MS, call_budget_remaining=9)
    envelope = Envelope.model_validate(
        {"id": blank, "subject": subject, "from": SENDER, "budget": budget, "created_at": iso(now), "payload": PAYLOAD}
    )
    head, tail = encode_envelope(envelope).split(blank.encode(), 1)
    return [Message(new, head + new.encode() + tail) for new in (_new_id(now) for _ in range(count))]


def make_mailbox(data_dir: Path, subject: str) -> Path:
    """Make an endpoint's mailbox as the bus would."""
    path = data_dir / "mailboxes" / subject_hash(subject)
    for state in STATES:
        (path / state).mkdir(parents=True)
    write_endpoint_file(path, EndpointFile(subject=subject, registered_at=iso(SystemClock().now_ms())), sync=False)
    return path


def write(mailboxes: Sequence[Path], mail: Sequence[Message], *, sync: bool = False) -> float:
    """Write every message to every mailbox; return the seconds it took."""
    boxes = [(f"{path}/tmp/", f"{path}/new/", os.open(path / "new", os.O_RDONLY)) for path in mailboxes]
    start = perf_counter()
    for message_id, data in mail:
        name = f"{message_id}.json"
        for tmp, new, directory in boxes:
            fd = os.open(tmp + name, _CREATE, 0o600)
            os.write(fd, data)
            if sync:
                os.fsync(fd)
            os.close(fd)
            os.rename(tmp + name, new + name)
            if sync:
                os.fsync(directory)
    took = perf_counter() - start
    for _, _, directory in boxes:
        os.close(directory)
    return took


def journal(directory: Path, subject: str, count: int, *, group: int) -> float:
    """Do what a journal must do for messages that are handled at once; return the seconds it took.

    For each message an id, its envelope as JSON, and three checksummed lines (stored, begun, ended); the lines of a
    group are written together and synced once. The file is filled with zeros first, as the journal's segments are.
    """
    clock = SystemClock()
    fd = os.open(directory / "journal.log", _CREATE, 0o600)
    os.write(fd, bytes(count * 2000))
    os.fsync(fd)
    offset = 0
    budget = {"hopCount": 1, "maxHops": 5, "ancestorChain": [SENDER], "ttl": 0, "callBudgetRemaining": 9}
    start = perf_counter()
    for first in range(0, count, group):
        lines = []
        for _ in range(first, min(first + group, count)):
            now = clock.now_ms()
            new = _new_id(now)
            head = {"id": new, "subject": subject, "from": SENDER, "budget": budget, "createdAt": iso(now)}
            for record in (head | {"payload": PAYLOAD}, {"id": new, "begun": subject}, {"id": new, "gone": subject}):
                line = orjson.dumps(record)
                lines.append(b"%08x %s\n" % (crc32(line), line))
        offset += os.pwrite(fd, b"".join(lines), offset)
        os.fdatasync(fd)
    took = perf_counter() - start
    os.close(fd)
    return took


def fill(mailbox: Path, subject: str, count: int) -> None:
    """Store messages in a mailbox that no bus has open."""
    for done in range(0, count, _CHUNK):
        write([mailbox], messages(subject, min(_CHUNK, count - done)))

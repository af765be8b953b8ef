"""A mailbox in memory: the messages waiting in ``new/``, in order, and the claimed ones in ``cur/``.

1. `depth` always equals the number of files in ``new/`` that this process has stored or discovered.
2. Space is reserved before a message is stored, and becomes depth or is released when the store has settled, so
   concurrent publishes cannot exceed the limit.
3. The claim on disk decides. An id whose file is gone was claimed by another process: it is dropped silently.
4. A claimed message stays in `claimed` until it is completed, dead-lettered or requeued; a restart would find it in
   ``cur/`` and dead-letter it as `interrupted`.

A message just stored stays in memory for its handler while the `MemoryBudget` allows; all others are read from disk
when they are claimed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import takewhile

import orjson

from relay_core.messages.base import trusted
from relay_core.messages.delivery import Status, stored_delivery
from relay_core.messages.envelope import decode_envelope
from relay_core.messages.ids import is_ulid
from relay_core.storage.endpoint_file import Endpoint, EndpointFile
from relay_core.storage.maildir import CUR, FAILED, NEW, Maildir
from relay_core.storage.stored_message import BadFile, FileContent, StoredMessage

_MEMORY_BYTES = 16 * 1024 * 1024
_OVERHEAD_BYTES = 3 * 1024
"""Memory that a message takes besides its bytes."""
_NAME_LENGTH = len("01ARZ3NDEKTSV4RRFFQ69G5FAV.json")


class MemoryBudget:
    """How many bytes of messages all mailboxes together may hold in memory."""

    __slots__ = ("left",)

    def __init__(self, limit: int = _MEMORY_BYTES) -> None:
        self.left = limit


@dataclass(slots=True)
class PressureEpisode:
    """A period of pressure above the warning, reported as two or three events."""

    state: str
    worst: int
    """The highest load so far."""
    limit: int
    ends_below: float
    """The load below which it is over, by the current limits."""


class Mailbox:
    """The messages of one target."""

    __slots__ = (
        "_arrivals",
        "_in_order",
        "_known",
        "_waiting",
        "about",
        "claimed",
        "dead",
        "degraded",
        "episode",
        "fresh",
        "hash",
        "is_handled",
        "maildir",
        "memory",
        "newest",
        "read_limit",
        "reserved",
    )

    def __init__(
        self, hash: str, about: EndpointFile, maildir: Maildir, *, read_limit: int, memory: MemoryBudget | None = None
    ) -> None:
        self.hash = hash
        self.about = about
        self.maildir = maildir
        self.read_limit = read_limit
        self.memory = memory or MemoryBudget()
        self.is_handled = False
        """Whether the mailbox has a consumer now; then new messages are worth keeping in memory."""
        self.fresh: dict[str, StoredMessage] = {}
        self.claimed: dict[str, StoredMessage] = {}
        self.reserved = 0
        self.dead = 0
        """Files in ``failed/``."""
        self.degraded: str | None = None
        """Why the last store could not be made durable, until one can."""
        self.episode: PressureEpisode | None = None
        """The present period of pressure, if any."""
        self.newest = ""
        """The newest id found by the scan."""
        self._waiting: deque[str] = deque()
        self._in_order = True
        self._known: set[str] = set()
        self._arrivals: list[asyncio.Future[None]] = []

    @property
    def subject(self) -> str:
        """Return the mailbox's subject."""
        return self.about.subject

    @property
    def depth(self) -> int:
        """Return the number of messages in ``new/``."""
        return len(self._known)

    @property
    def load(self) -> int:
        """Return the depth plus the reserved space."""
        return len(self._known) + self.reserved

    def endpoint(self) -> Endpoint:
        """Return the mailbox as a public Endpoint."""
        return trusted(
            Endpoint,
            {
                "subject": self.subject,
                "hash": self.hash,
                "maildir_path": self.maildir.path,
                "registered_at": self.about.registered_at,
            },
        )

    def scan(self) -> list[BadFile]:
        """Load the names in the directories; return the files that are not messages. Blocks."""
        names = self.maildir.names(NEW)
        # There may be a hundred thousand names: only the length is checked here, the rest when a message is claimed,
        # and they are sorted on first use.
        found = [name[:-5] for name in names if len(name) == _NAME_LENGTH and name.endswith(".json")]
        self._known.update(found)
        self._waiting.extend(found)
        self._in_order = len(found) < 2
        bad = self.discover(names) if len(found) < len(names) else []
        failed = self.maildir.names(FAILED)
        records = {name[:-5] for name in failed if name.endswith(".json")}
        self.dead = len(records)
        self.newest = max(_newest(self._known), _newest(records))
        for name in failed:
            message_id = name.removesuffix(".original")
            if message_id != name and message_id not in records:
                problem = "quarantined by a process that died before it could record why"
                bad.append(BadFile(message_id, FAILED, name, problem))
        return bad

    def discover(self, names: list[str]) -> list[BadFile]:
        """Add files in ``new/`` that are not known yet and still exist; return those that are not messages."""
        bad = []
        for name in names:
            message_id = name[:-5]
            if name.endswith(".json") and is_ulid(message_id):
                is_known = message_id in self._known or message_id in self.claimed
                if not is_known and NEW in self.maildir.whereabouts(message_id):
                    self._known.add(message_id)
                    self._waiting.append(message_id)
                    self._notify_arrival()
            elif not name.startswith("."):
                bad.append(BadFile("", NEW, name, f"the name {name!r} is not a message id followed by .json"))
        return bad

    def restored(self, message_id: str) -> None:
        """Add a message that recovery has written to ``new/``, in its order."""
        if not self.has(message_id):
            self.discover([f"{message_id}.json"])
            self._in_order = False

    def undiscovered(self) -> list[str]:
        """Return the names in ``new/`` that are not known yet, oldest first. Blocks, and may run in a thread."""
        return sorted(name for name in self.maildir.names(NEW) if not self.has(name.removesuffix(".json")))

    def forget(self, message_id: str) -> None:
        """Drop an id whose file another process has taken out of ``new/``."""
        self._known.discard(message_id)
        self._recall(message_id)

    def wants(self, size: int) -> bool:
        """Return True if a message about to be stored should stay in memory."""
        return self.is_handled and self.memory.left >= size + _OVERHEAD_BYTES

    def arrived(self, message_id: str, message: StoredMessage | None) -> None:
        """Turn reserved space into a waiting message; `message` is given if it stays in memory."""
        self.reserved -= 1
        self.degraded = None
        self._known.add(message_id)
        self._waiting.append(message_id)
        if message is not None:
            self.fresh[message_id] = message
            self.memory.left -= message.delivery.size + _OVERHEAD_BYTES
        if self._arrivals:
            self._notify_arrival()

    def next_arrival(self) -> asyncio.Future[None]:
        """Return a future that resolves when the next message arrives; cancel it to stop waiting."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.append(arrival)
        arrival.add_done_callback(self._forget_arrival)
        return arrival

    def _forget_arrival(self, arrival: asyncio.Future[None]) -> None:
        if arrival in self._arrivals:
            self._arrivals.remove(arrival)

    def _notify_arrival(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            if not arrival.done():
                arrival.set_result(None)

    def requeue(self, message: StoredMessage) -> bool:
        """Return a claimed message whose handling has not begun to its place in the queue; False if it is gone.

        Raises:
            OSError: if the file cannot be moved; the message stays claimed.
        """
        if not self.maildir.unclaim(message.id):
            return False
        del self.claimed[message.id]
        self._known.add(message.id)
        ahead = takewhile(lambda waiting: waiting < message.id, self._waiting)  # older messages requeued before it
        self._waiting.insert(sum(1 for _ in ahead), message.id)
        message.probe = False
        message.delivery.status = Status.NEW
        # Regardless of the memory budget: only this object refers to the fan-out that waits for its outcome.
        self.fresh[message.id] = message
        self.memory.left -= message.delivery.size + _OVERHEAD_BYTES
        self._notify_arrival()
        return True

    def head(self) -> str | None:
        """Return the id of the oldest waiting message, or None."""
        if not self._in_order:
            self._waiting = deque(sorted(self._waiting))
            self._in_order = True
        while self._waiting:
            if self._waiting[0] in self._known:
                return self._waiting[0]
            self._waiting.popleft()
        return None

    def has(self, message_id: str) -> bool:
        """Return True if the message is waiting."""
        return message_id in self._known

    def waiting(self, limit: int, after: str = "") -> list[str]:
        """Return the oldest waiting ids after an id."""
        found: dict[str, None] = {}  # a message that was claimed out of order and replayed is in the queue twice
        self.head()
        for message_id in self._waiting:
            if len(found) >= limit:
                break
            if message_id > after and message_id in self._known:
                found[message_id] = None
        return list(found)

    def claim_next(self) -> StoredMessage | BadFile | None:
        """Claim the oldest message; return None if none is left."""
        while (message_id := self.head()) is not None:
            taken = self.take(message_id)
            self._waiting.popleft()
            if taken is not None:
                return taken
        return None

    def take(self, message_id: str) -> StoredMessage | BadFile | None:
        """Claim a message; return None if another process has claimed it.

        Raises:
            OSError: if the file cannot be moved; the message stays where it is.
        """
        claimed = self.maildir.claim(message_id)
        self._known.discard(message_id)
        message = self._recall(message_id)
        if not claimed:
            return None
        if message is None:
            read = self.read(CUR, message_id)
            if isinstance(read, BadFile):
                return read
            message = read
        message.delivery.status = Status.CUR
        self.claimed[message_id] = message
        return message

    def _recall(self, message_id: str) -> StoredMessage | None:
        """Remove a message from memory and return it, if it is there."""
        message = self.fresh.pop(message_id, None)
        if message is not None:
            self.memory.left += message.delivery.size + _OVERHEAD_BYTES
        return message

    def read(self, state: str, message_id: str) -> StoredMessage | BadFile:
        """Read a message from disk.

        Raises:
            FileNotFoundError: if it does not exist.
        """
        try:
            data = self.maildir.read(state, message_id, limit=self.read_limit)
            envelope = decode_envelope(data)
            if envelope.id != message_id:
                raise ValueError(f"holds the id {envelope.id}")
        except ValueError as error:
            return BadFile(message_id, state, f"{message_id}.json", str(error))
        status = Status.CUR if state == CUR else Status.NEW
        delivery = stored_delivery(
            envelope,
            target=self.hash,
            kind=self.about.kind,
            target_subject=self.subject,
            status=status,
            size=len(orjson.dumps(envelope.payload)),
        )
        return StoredMessage(envelope, FileContent(data), delivery)


def _newest(ids: set[str]) -> str:
    newest = max(ids, default="")
    return newest if not newest or is_ulid(newest) else max(filter(is_ulid, ids), default="")

"""A mailbox in memory: what waits in ``new/``, in order, and who has what in ``cur/``.

1. `depth` always equals the number of files in ``new/`` that this process has put or seen there.
2. Room is reserved before a message is stored and becomes depth (or is given back) when the store
   has settled, so that publishes under way at the same time cannot overshoot.
3. The claim on disk decides. An id whose file is gone was somebody else's: it is dropped silently.
4. A claimed message is held here until it is completed, parked or put back; at a restart it would
   be found in ``cur/`` and parked as `interrupted`.

A message just stored is kept in memory for its handler while the bus has room for it (`Memory`); all
others are read back when they are claimed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import orjson

from relay_core.delivery import Delivery, Status, stored_delivery
from relay_core.endpoints import Endpoint, EndpointFile
from relay_core.envelope import Envelope, decode_envelope
from relay_core.ids import is_ulid
from relay_core.maildir import CUR, FAILED, NEW, Maildir
from relay_core.model import trusted

_MEMORY_BYTES = 16 * 1024 * 1024
_ITEM_BYTES = 3 * 1024
_NAME_LENGTH = len("01ARZ3NDEKTSV4RRFFQ69G5FAV.json")


class Fanout(Protocol):
    """What waits for the outcome of a publish at several targets."""

    def succeeded(self, item: Item) -> None:
        """Take note that a target took its copy."""
        ...

    def failed(self, item: Item, code: str, reason: str) -> None:
        """Take a copy that its target failed, still claimed; parking it is the fan-out's business now."""
        ...

    def postponed(self, item: Item) -> None:
        """Take note that a target has put its copy back in line."""
        ...


@dataclass(slots=True, eq=False)
class Item:
    """A message in hand."""

    envelope: Envelope
    data: bytes
    delivery: Delivery
    probe: bool = False
    """Whether it holds a half-open breaker's permit."""
    stored_at: float = 0.0
    """Monotonic time at which this process stored it; 0 if it was read back."""
    fanout: Fanout | None = None
    """Who decides what a failure means, where other targets have a say."""
    ended: bool = False
    """Whether it is written down already that it was handled."""

    @property
    def id(self) -> str:
        """Return the message's id."""
        return self.envelope.id


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that is no message and must be set aside."""

    message_id: str
    state: str
    name: str
    problem: str


class Memory:
    """How much of the mail of all mailboxes may be kept in memory."""

    __slots__ = ("left",)

    def __init__(self, limit: int = _MEMORY_BYTES) -> None:
        self.left = limit


@dataclass(slots=True)
class Episode:
    """How long pressure stays above the warning, written down as two or three events."""

    state: str
    worst: int
    """The highest load so far."""
    limit: int
    ends_below: float
    """The load below which it is over, by the limits in force."""


class Mailbox:
    """The mail of one target."""

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
        self, hash: str, about: EndpointFile, maildir: Maildir, *, read_limit: int, memory: Memory | None = None
    ) -> None:
        self.hash = hash
        self.about = about
        self.maildir = maildir
        self.read_limit = read_limit
        self.memory = memory or Memory()
        self.is_handled = False
        """Whether somebody handles this mail, as things stand; then what comes is worth keeping in memory."""
        self.fresh: dict[str, Item] = {}
        self.claimed: dict[str, Item] = {}
        self.reserved = 0
        self.dead = 0
        """Files in ``failed/``."""
        self.degraded: str | None = None
        """Why the last store could not be made durable, until one can."""
        self.episode: Episode | None = None
        """The pressure above the warning, until it falls below."""
        self.newest = ""
        """The newest id found by the scan."""
        self._waiting: deque[str] = deque()
        self._in_order = True
        self._known: set[str] = set()
        self._arrivals: list[asyncio.Future[None]] = []

    @property
    def subject(self) -> str:
        """Return the subject whose mail this is."""
        return self.about.subject

    @property
    def depth(self) -> int:
        """Return how many messages wait in ``new/``."""
        return len(self._known)

    @property
    def load(self) -> int:
        """Return the depth, with the room that is reserved."""
        return len(self._known) + self.reserved

    def endpoint(self) -> Endpoint:
        """Return the mailbox as the endpoint that users see."""
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
        """Learn what is in the directories; return the files that are no messages. Blocks."""
        names = self.maildir.names(NEW)
        # A hundred thousand names: the length is checked here, the rest when one is claimed, and the
        # order is made when it is first asked for.
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
                problem = "set aside by a process that died before it could say why"
                bad.append(BadFile(message_id, FAILED, name, problem))
        return bad

    def discover(self, names: list[str]) -> list[BadFile]:
        """Note files in ``new/`` that are not known yet, if they are still there; return those that are no messages."""
        bad = []
        for name in names:
            message_id = name[:-5]
            if name.endswith(".json") and is_ulid(message_id):
                is_known = message_id in self._known or message_id in self.claimed
                if not is_known and NEW in self.maildir.whereabouts(message_id):
                    self._known.add(message_id)
                    self._waiting.append(message_id)
                    self._tell_arrival()
            elif not name.startswith("."):
                bad.append(BadFile("", NEW, name, f"the name {name!r} is not a message id followed by .json"))
        return bad

    def restored(self, message_id: str) -> None:
        """Note a message that is back in ``new/``, if it is, at its place in line."""
        if not self.has(message_id):
            self.discover([f"{message_id}.json"])
            self._in_order = False

    def strangers(self) -> list[str]:
        """Return the names in ``new/`` that are not known, oldest first. Blocks, and may run in a thread."""
        return sorted(name for name in self.maildir.names(NEW) if not self.has(name.removesuffix(".json")))

    def forget(self, message_id: str) -> None:
        """Drop an id whose file was taken out of ``new/`` by other hands."""
        self._known.discard(message_id)
        self._recall(message_id)

    def wants(self, size: int) -> bool:
        """Tell whether a message about to be stored is worth keeping in memory."""
        return self.is_handled and self.memory.left >= size + _ITEM_BYTES

    def arrived(self, message_id: str, item: Item | None) -> None:
        """Turn reserved room into a waiting message; `item` if it is kept in memory."""
        self.reserved -= 1
        self.degraded = None
        self._known.add(message_id)
        self._waiting.append(message_id)
        if item is not None:
            self.fresh[message_id] = item
            self.memory.left -= len(item.data) + _ITEM_BYTES
        if self._arrivals:
            self._tell_arrival()

    def next_arrival(self) -> asyncio.Future[None]:
        """Return what is done when the next message comes; cancel it to be told no more."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.append(arrival)
        arrival.add_done_callback(self._forget_arrival)
        return arrival

    def _forget_arrival(self, arrival: asyncio.Future[None]) -> None:
        if arrival in self._arrivals:
            self._arrivals.remove(arrival)

    def _tell_arrival(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for arrival in arrivals:
            if not arrival.done():
                arrival.set_result(None)

    def put_back(self, item: Item) -> bool:
        """Put a claimed message that was not begun back at its place in line; return False if it cannot be.

        Raises:
            OSError: if the disk refuses; the message stays claimed.
        """
        if not self.maildir.unclaim(item.id):
            return False
        del self.claimed[item.id]
        self._known.add(item.id)
        ahead = takewhile(lambda waiting: waiting < item.id, self._waiting)  # older ones that were put back before it
        self._waiting.insert(sum(1 for _ in ahead), item.id)
        item.probe = False
        item.delivery.status = Status.NEW
        # Whatever it takes of the memory: who waits for its outcome is known to this item only.
        self.fresh[item.id] = item
        self.memory.left -= len(item.data) + _ITEM_BYTES
        self._tell_arrival()
        return True

    def head(self) -> str | None:
        """Return the id that is next in line, or None."""
        if not self._in_order:
            self._waiting = deque(sorted(self._waiting))
            self._in_order = True
        while self._waiting:
            if self._waiting[0] in self._known:
                return self._waiting[0]
            self._waiting.popleft()
        return None

    def has(self, message_id: str) -> bool:
        """Tell whether a message waits."""
        return message_id in self._known

    def waiting(self, limit: int, after: str = "") -> list[str]:
        """Return the oldest waiting ids, of those after an id."""
        found: dict[str, None] = {}  # one that was claimed out of turn and replayed is in the line twice
        self.head()
        for message_id in self._waiting:
            if len(found) >= limit:
                break
            if message_id > after and message_id in self._known:
                found[message_id] = None
        return list(found)

    def claim_next(self) -> Item | BadFile | None:
        """Claim the oldest message; None if there is none left."""
        while (message_id := self.head()) is not None:
            taken = self.take(message_id)
            self._waiting.popleft()
            if taken is not None:
                return taken
        return None

    def take(self, message_id: str) -> Item | BadFile | None:
        """Claim one message; None if somebody else has it.

        Raises:
            OSError: if the disk refuses; the message stays where it is.
        """
        claimed = self.maildir.claim(message_id)
        self._known.discard(message_id)
        item = self._recall(message_id)
        if not claimed:
            return None
        if item is None:
            read = self.read(CUR, message_id)
            if isinstance(read, BadFile):
                return read
            item = read
        item.delivery.status = Status.CUR
        self.claimed[message_id] = item
        return item

    def _recall(self, message_id: str) -> Item | None:
        """Take a message that was kept out of memory."""
        item = self.fresh.pop(message_id, None)
        if item is not None:
            self.memory.left += len(item.data) + _ITEM_BYTES
        return item

    def read(self, state: str, message_id: str) -> Item | BadFile:
        """Read a message back from disk.

        Raises:
            FileNotFoundError: if it is not there.
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
        return Item(envelope, data, delivery)


def _newest(ids: set[str]) -> str:
    newest = max(ids, default="")
    return newest if not newest or is_ulid(newest) else max(filter(is_ulid, ids), default="")

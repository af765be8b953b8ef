"""All mailboxes: those on disk, which of them are endpoints, and how to find them.

A mailbox is created for an endpoint when it is registered, for an adapter when it is added (for one of its lanes, when
the first message arrives), and for any other subject when the first message must be stored for it (a dead letter, or a
message for a subscription without endpoint). It is never removed while it holds messages.

Reply mailboxes are found by their exact subject only: they are in no trie, so no pattern selects one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from relay_core.errors import StorageError
from relay_core.messages.dead_letter import decode_dead_letter
from relay_core.messages.delivery import TargetKind
from relay_core.messages.envelope import decode_envelope
from relay_core.messages.ids import is_ulid
from relay_core.messages.subjects import is_reply, subject_hash
from relay_core.messages.trie import SubjectTrie
from relay_core.storage.atomic_file import storage_error
from relay_core.storage.endpoint_file import EndpointFile, read_endpoint_file, write_endpoint_file
from relay_core.storage.mailbox import Mailbox, MemoryBudget
from relay_core.storage.maildir import CUR, FAILED, NEW, Maildir
from relay_core.storage.stored_message import BadFile
from relay_core.storage.trusted_file import UntrustedFile, check_owner

logger = logging.getLogger(__name__)


class Mailboxes:
    """Mailboxes by hash, and endpoints by subject."""

    def __init__(self, directory: Path, *, read_limit: int, sync: bool) -> None:
        self.directory = directory
        self._read_limit = read_limit
        self._sync = sync
        self._memory = MemoryBudget()
        self._by_hash: dict[str, Mailbox] = {}
        self._endpoints: SubjectTrie[Mailbox] = SubjectTrie()
        self._subjects: SubjectTrie[Mailbox] = SubjectTrie()
        """Every mailbox of a subject, endpoint or not."""
        self._by_subject: dict[str, Mailbox] = {}
        """Registered endpoints, for look-ups by exact subject."""
        self._sorted: list[str] | None = None
        """Cached: the sorted subjects of all endpoints except reply mailboxes."""

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._by_hash.values()))

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, hash: str) -> Mailbox | None:
        """Return a mailbox by its hash."""
        return self._by_hash.get(hash)

    def find(self, name: str) -> Mailbox | None:
        """Return a mailbox by its hash or subject."""
        return self._by_hash.get(name) or self._by_hash.get(subject_hash(name))

    def endpoint(self, subject: str) -> Mailbox | None:
        """Return the mailbox of a registered endpoint."""
        return self._by_subject.get(subject)

    def select(self, pattern: str) -> list[Mailbox]:
        """Return the mailboxes of the endpoints that match a pattern."""
        return self._endpoints.select(pattern)

    def select_any(self, pattern: str) -> list[Mailbox]:
        """Return all mailboxes, endpoints or not, whose messages a subscription to the pattern would handle."""
        return self._subjects.select(pattern)

    def endpoints(self) -> list[Mailbox]:
        """Return the mailboxes of all endpoints, sorted by subject."""
        return [self._by_subject[subject] for subject in sorted(self._by_subject)]

    def names(self) -> list[str]:
        """Return the sorted subjects of all endpoints except reply mailboxes; do not modify the list."""
        if self._sorted is None:
            self._sorted = sorted(subject for subject in self._by_subject if not is_reply(subject))
        return self._sorted

    def maildir(self, hash: str) -> Maildir:
        """Return the Maildir of a mailbox, whether or not it is loaded."""
        mailbox = self._by_hash.get(hash)
        return mailbox.maildir if mailbox is not None else Maildir(self.directory / hash)

    def load(self) -> list[tuple[Mailbox, list[BadFile]]]:
        """Load every mailbox; return the files that are not messages. Blocks."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        bad = []
        for name in sorted(os.listdir(self.directory)):
            loaded = self._load(name)
            if loaded is not None and loaded[1]:
                bad.append(loaded)
        return bad

    def load_mailbox(self, hash: str) -> Mailbox | None:
        """Load a mailbox whose directory was created again; return None if its subject is unknown. Blocks."""
        loaded = self._load(hash)
        return loaded[0] if loaded is not None else None

    def _load(self, name: str) -> tuple[Mailbox, list[BadFile]] | None:
        path = self.directory / name
        try:
            check_owner(path)
        except UntrustedFile as error:
            logger.error("ignoring a mailbox: %s", error)
            return None
        about = read_endpoint_file(path) or self._identify(path)
        if about is None:
            if path.is_dir():
                logger.warning("ignoring %s: it has no valid endpoint.json", path)
            return None
        mailbox = Mailbox(name, about, Maildir(path), read_limit=self._read_limit, memory=self._memory)
        try:
            mailbox.maildir.create(sync=False)
            strays = mailbox.scan()
        except OSError as error:
            logger.error("ignoring %s: %s", path, error)
            return None
        self._add(mailbox)
        return mailbox, strays

    def open(self, subject: str, kind: str, now: str, *, registered: bool) -> Mailbox:
        """Return a subject's mailbox, created or updated as needed. Blocks.

        Raises:
            StorageError: if it cannot be written.
        """
        return self.adopt(*self.prepare(subject, kind, now, registered=registered))

    def prepare(self, subject: str, kind: str, now: str, *, registered: bool) -> tuple[Mailbox, EndpointFile]:
        """Do the disk part of `open`, which may run in a thread; `adopt` does the rest. Blocks.

        Raises:
            StorageError: if it cannot be written.
        """
        hash = subject_hash(subject)
        mailbox = self._by_hash.get(hash)
        if mailbox is None:
            about = EndpointFile(subject=subject, registered_at=now, registered=registered, kind=kind)
            mailbox = Mailbox(hash, about, self.maildir(hash), read_limit=self._read_limit, memory=self._memory)
            try:
                mailbox.maildir.create(sync=self._sync)
            except OSError as error:
                raise storage_error("create", mailbox.maildir.path, error) from error
            write_endpoint_file(mailbox.maildir.path, about, sync=self._sync)
            mailbox.scan()
            return mailbox, about
        adapter = kind == TargetKind.ADAPTER and mailbox.about.kind != kind  # so far it held only dead letters
        if adapter or (registered and not mailbox.about.registered):
            about = EndpointFile(subject=subject, registered_at=now, registered=registered, kind=kind)
            write_endpoint_file(mailbox.maildir.path, about, sync=self._sync)
            return mailbox, about
        return mailbox, mailbox.about

    def adopt(self, mailbox: Mailbox, about: EndpointFile) -> Mailbox:
        """Start routing to a prepared mailbox."""
        if about.kind == TargetKind.ADAPTER and mailbox.about.kind != about.kind:
            self._subjects.remove(mailbox.subject, mailbox)
        mailbox.about = about
        self._add(mailbox)
        return mailbox

    def unregister(self, mailbox: Mailbox) -> None:
        """Stop routing to an endpoint; its messages stay. Blocks."""
        about = mailbox.about.model_copy(update={"registered": False})
        # Every start unregisters all reply mailboxes, so this need not survive a power loss.
        write_endpoint_file(mailbox.maildir.path, about, sync=self._sync and not is_reply(mailbox.subject))
        mailbox.about = about
        if self._by_subject.pop(mailbox.subject, None) is not None:
            self._endpoints.remove(mailbox.subject, mailbox)
            self._sorted = None

    def drop(self, mailbox: Mailbox) -> bool:
        """Remove an empty mailbox that is not an endpoint; return False if it is in use. Blocks."""
        if mailbox.about.registered or mailbox.load or mailbox.claimed:
            return False
        if any(mailbox.maildir.names(state) for state in (NEW, CUR, FAILED)):
            return False
        mailbox.maildir.destroy()
        del self._by_hash[mailbox.hash]
        self._subjects.remove(mailbox.subject, mailbox)
        return True

    def newest(self) -> str | None:
        """Return the newest message id found on disk."""
        newest = max((mailbox.newest for mailbox in self), default="")
        return newest if is_ulid(newest) else None

    def _add(self, mailbox: Mailbox) -> None:
        is_private = is_reply(mailbox.subject)
        if mailbox.hash not in self._by_hash and mailbox.about.kind != TargetKind.ADAPTER and not is_private:
            self._subjects.add(mailbox.subject, mailbox)
        self._by_hash[mailbox.hash] = mailbox
        is_endpoint = mailbox.about.registered and mailbox.about.kind == TargetKind.ENDPOINT
        if is_endpoint and mailbox.subject not in self._by_subject:
            self._by_subject[mailbox.subject] = mailbox
            if not is_private:
                self._endpoints.add(mailbox.subject, mailbox)
                self._sorted = None

    def _identify(self, path: Path) -> EndpointFile | None:
        """Restore a lost endpoint.json from the messages in the mailbox."""
        maildir = Maildir(path)
        for state in (NEW, CUR, FAILED):
            for message_id in maildir.ids(state)[:10]:
                try:
                    data = maildir.read(state, message_id, limit=self._read_limit)
                    envelope = (
                        decode_dead_letter(message_id, data).envelope if state == FAILED else decode_envelope(data)
                    )
                except (OSError, ValueError):
                    continue
                if envelope is not None and subject_hash(envelope.subject) == path.name:
                    about = EndpointFile(subject=envelope.subject, registered_at=envelope.created_at)
                    try:
                        write_endpoint_file(path, about, sync=self._sync)
                    except StorageError as error:
                        logger.error("%s: cannot restore endpoint.json for %s: %s", path, about.subject, error)
                    else:
                        logger.warning("%s: endpoint.json restored from its messages (%s)", path, about.subject)
                    return about
        return None

"""All mailboxes: which there are on disk, which are endpoints, and how to find them.

A mailbox is made for an endpoint when it is registered, for an adapter when it is added (for one of its lanes, when the
first message comes), and for any other subject when the first message must be kept for it (a dead letter, or mail for
a subscription that has no endpoint). It is never removed while it holds mail.

Reply mailboxes are found by their exact subject alone: they are in no trie, so no pattern selects one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from relay_core.deadletters import decode_dead_letter
from relay_core.delivery import TargetKind
from relay_core.endpoints import EndpointFile, read_endpoint_file, write_endpoint_file
from relay_core.envelope import decode_envelope
from relay_core.errors import StorageError
from relay_core.files import storage_error
from relay_core.ids import is_ulid
from relay_core.mailbox import BadFile, Mailbox, Memory
from relay_core.maildir import CUR, FAILED, NEW, Maildir
from relay_core.own_files import Unreadable, check_own
from relay_core.subjects import is_reply, subject_hash
from relay_core.trie import SubjectTrie

logger = logging.getLogger(__name__)


class Mailboxes:
    """Mailboxes by hash, and endpoints by subject."""

    def __init__(self, directory: Path, *, read_limit: int, sync: bool) -> None:
        self.directory = directory
        self._read_limit = read_limit
        self._sync = sync
        self._memory = Memory()
        self._by_hash: dict[str, Mailbox] = {}
        self._endpoints: SubjectTrie[Mailbox] = SubjectTrie()
        self._subjects: SubjectTrie[Mailbox] = SubjectTrie()
        """Every mailbox of a subject, endpoint or not."""
        self._by_subject: dict[str, Mailbox] = {}
        """Registered endpoints: an exact subject needs no walk."""
        self._sorted: list[str] | None = None
        """The subjects of all endpoints but reply mailboxes in order, until one comes or goes."""

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._by_hash.values()))

    def __len__(self) -> int:
        return len(self._by_hash)

    def get(self, hash: str) -> Mailbox | None:
        """Return a mailbox by its hash."""
        return self._by_hash.get(hash)

    def find(self, name: str) -> Mailbox | None:
        """Return a mailbox by its hash or its subject."""
        return self._by_hash.get(name) or self._by_hash.get(subject_hash(name))

    def endpoint(self, subject: str) -> Mailbox | None:
        """Return the mailbox of a registered endpoint."""
        return self._by_subject.get(subject)

    def select(self, pattern: str) -> list[Mailbox]:
        """Return the mailboxes of the endpoints that a pattern matches."""
        return self._endpoints.select(pattern)

    def heard_by(self, pattern: str) -> list[Mailbox]:
        """Return the mailboxes whose mail a subscription to the pattern would handle."""
        return self._subjects.select(pattern)

    def endpoints(self) -> list[Mailbox]:
        """Return the mailboxes of all endpoints, by subject."""
        return [self._by_subject[subject] for subject in sorted(self._by_subject)]

    def names(self) -> list[str]:
        """Return the subjects of all endpoints but reply mailboxes, in order; not to be changed."""
        if self._sorted is None:
            self._sorted = sorted(subject for subject in self._by_subject if not is_reply(subject))
        return self._sorted

    def maildir(self, hash: str) -> Maildir:
        """Return a mailbox's directories, known or not."""
        return Maildir(self.directory / hash)

    def load(self) -> list[tuple[Mailbox, list[BadFile]]]:
        """Read every mailbox there is; return the files that are no messages. Blocks."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        bad = []
        for name in sorted(os.listdir(self.directory)):
            loaded = self._load(name)
            if loaded is not None and loaded[1]:
                bad.append(loaded)
        return bad

    def load_one(self, hash: str) -> Mailbox | None:
        """Read a mailbox whose directory was made again; return None if it does not say whose it is. Blocks."""
        loaded = self._load(hash)
        return loaded[0] if loaded is not None else None

    def _load(self, name: str) -> tuple[Mailbox, list[BadFile]] | None:
        path = self.directory / name
        try:
            check_own(path)
        except Unreadable as error:
            logger.error("a mailbox is not used: %s", error)
            return None
        about = read_endpoint_file(path) or self._identify(path)
        if about is None:
            if path.is_dir():
                logger.warning("%s does not say whose mailbox it is: left alone", path)
            return None
        mailbox = Mailbox(name, about, Maildir(path), read_limit=self._read_limit, memory=self._memory)
        try:
            mailbox.maildir.create(sync=False)
            strays = mailbox.scan()
        except OSError as error:
            logger.error("%s cannot be used and is left alone: %s", path, error)
            return None
        self._add(mailbox)
        return mailbox, strays

    def open(self, subject: str, kind: str, now: str, *, registered: bool) -> Mailbox:
        """Return a subject's mailbox, made or updated as needed. Blocks.

        Raises:
            StorageError: if the disk refuses.
        """
        return self.adopt(*self.prepare(subject, kind, now, registered=registered))

    def prepare(self, subject: str, kind: str, now: str, *, registered: bool) -> tuple[Mailbox, EndpointFile]:
        """Do what `open` has to do on disk, which a thread may; `adopt` does the rest. Blocks.

        Raises:
            StorageError: if the disk refuses.
        """
        hash = subject_hash(subject)
        mailbox = self._by_hash.get(hash)
        if mailbox is None:
            about = EndpointFile(subject=subject, registered_at=now, registered=registered, kind=kind)
            mailbox = Mailbox(hash, about, self.maildir(hash), read_limit=self._read_limit, memory=self._memory)
            try:
                mailbox.maildir.create(sync=self._sync)
            except OSError as error:
                raise storage_error("make", mailbox.maildir.path, error) from error
            write_endpoint_file(mailbox.maildir.path, about, sync=self._sync)
            mailbox.scan()
            return mailbox, about
        adapter = kind == TargetKind.ADAPTER and mailbox.about.kind != kind  # it held dead letters only
        if adapter or (registered and not mailbox.about.registered):
            about = EndpointFile(subject=subject, registered_at=now, registered=registered, kind=kind)
            write_endpoint_file(mailbox.maildir.path, about, sync=self._sync)
            return mailbox, about
        return mailbox, mailbox.about

    def adopt(self, mailbox: Mailbox, about: EndpointFile) -> Mailbox:
        """Route to a mailbox that is prepared."""
        if about.kind == TargetKind.ADAPTER and mailbox.about.kind != about.kind:
            self._subjects.remove(mailbox.subject, mailbox)
        mailbox.about = about
        self._add(mailbox)
        return mailbox

    def unregister(self, mailbox: Mailbox) -> None:
        """Stop routing to an endpoint; its mail stays. Blocks."""
        about = mailbox.about.model_copy(update={"registered": False})
        # A start unregisters every reply mailbox again, so that one need not survive a power loss.
        write_endpoint_file(mailbox.maildir.path, about, sync=self._sync and not is_reply(mailbox.subject))
        mailbox.about = about
        if self._by_subject.pop(mailbox.subject, None) is not None:
            self._endpoints.remove(mailbox.subject, mailbox)
            self._sorted = None

    def drop(self, mailbox: Mailbox) -> bool:
        """Remove an empty mailbox that is no endpoint; return False if it is in use. Blocks."""
        if mailbox.about.registered or mailbox.load or mailbox.claimed:
            return False
        if any(mailbox.maildir.names(state) for state in (NEW, CUR, FAILED)):
            return False
        mailbox.maildir.destroy()
        del self._by_hash[mailbox.hash]
        self._subjects.remove(mailbox.subject, mailbox)
        return True

    def newest(self) -> str | None:
        """Return the newest message id that was found on disk."""
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
        """Find out from its mail whose mailbox a directory is whose endpoint.json is lost."""
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
                        logger.error("%s is %s's by its mail, but cannot say so: %s", path, about.subject, error)
                    else:
                        logger.warning("%s: endpoint.json restored from its mail (%s)", path, about.subject)
                    return about
        return None

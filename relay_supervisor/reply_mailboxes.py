"""The reply mailboxes of connections: made by the server, private to one connection, and cleaned up in slices.

1. The server makes the name, from a key that it gives to the owner alone: the name is a hash of the key. A name cannot
   be guessed, and a recipient that was told the name cannot claim the mailbox.
2. A mailbox belongs to one connection. A client that has lost its connection, also by a restart, shows the key on a new
   one and has the same mailbox again, from whatever connection had it.
3. No other connection reads it, not the operator's either while it is owned. Once its connection is gone, an operator
   may look at, claim and finish what is left in it.
4. When a connection ends, its mailboxes are unregistered in slices of a few ms, with others served in between.
5. A token has at most `limits.maxReplyMailboxes`, over all its connections; so has a connection of the operator.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex

from relay_core.core import RelayCore
from relay_core.errors import AccessDenied, NotFound, StorageError
from relay_core.publication import Publication
from relay_core.subjects import REPLY_PREFIX, is_pattern, is_reply
from relay_core.tasks import Tasks
from relay_supervisor.connection import Connection
from relay_supervisor.deliveries import Deliveries
from relay_supervisor.pacing import Slices

logger = logging.getLogger(__name__)

_NAME_CHARS = 32


class ReplyMailboxes:
    """Know whose each reply mailbox is."""

    def __init__(self, relay: RelayCore, deliveries: Deliveries, tasks: Tasks) -> None:
        self._relay = relay
        self._deliveries = deliveries
        self._tasks = tasks
        self._owners: dict[str, Connection] = {}

    async def open(self, connection: Connection, key: str | None) -> tuple[str, str]:
        """Make a mailbox for a connection, or give it the one of a key; return its subject and its key.

        Raises:
            AccessDenied: with code `too_many`, if the limit is reached.
        """
        self._check_limit(connection)
        key = key or token_hex(32)
        subject = f"{REPLY_PREFIX}{sha256(key.encode()).hexdigest()[:_NAME_CHARS]}"
        before = self._owners.get(subject)
        if before is not None and before is not connection:
            before.identity.replies.discard(subject)
            self._deliveries.unsubscribe_from(before, subject)
        self._owners[subject] = connection  # before anything waits
        connection.identity.replies.add(subject)
        connection.on_closed(lambda: self._leave(connection), key=self)
        await self._relay.register_endpoint(subject)
        if connection.closed:  # meanwhile: its clean-up may have passed this one already
            self._leave(connection)
        return subject, key

    def close(self, connection: Connection, subject: str) -> None:
        """Forget that a connection has a mailbox."""
        connection.identity.replies.discard(subject)
        if self._owners.get(subject) is connection:
            del self._owners[subject]

    def check_reader(self, connection: Connection, pattern: str, *, leftovers: bool = False) -> None:
        """Check that a connection may read the mail of a subject or a pattern.

        `leftovers` also lets the operator have what is left in a mailbox whose connection is gone.

        Raises:
            AccessDenied: if some of it is another's.
        """
        who = connection.identity
        if not is_reply(pattern):
            who.check_reader(pattern)
        elif pattern not in who.replies and not (leftovers and who.operator and self._is_left(pattern)):
            raise AccessDenied(
                f"{pattern} is not a reply mailbox of this connection: make one with replies.open",
                code="subject_not_yours",
                subject=pattern,
            )

    def check_reply_to(self, connection: Connection, publication: Publication) -> None:
        """Check that a publish may ask for its answer where it does: at its own mailbox, or where it may answer itself.

        Raises:
            AccessDenied: if the mailbox is another's.
        """
        subject = publication.reply_to
        if subject is None or not is_reply(subject) or subject in connection.identity.replies:
            return
        if not self._relay.bus.replies.is_asked(publication, subject):
            raise AccessDenied(
                f"{subject} is not a reply mailbox of this connection: make one with replies.open, or omit replyTo",
                code="reply_not_yours",
                subject=subject,
            )

    def _is_left(self, subject: str) -> bool:
        owner = self._owners.get(subject)
        return not is_pattern(subject) and (owner is None or owner.closed)

    def _check_limit(self, connection: Connection) -> None:
        most = self._relay.bus.config.limits.max_reply_mailboxes
        token = connection.identity.token
        owners = {connection}
        if token is not None:  # a mailbox that is being cleaned up counts too
            owners |= {one for one in set(self._owners.values()) if one.identity.token == token}
        if sum(len(one.identity.replies) for one in owners) >= most:
            raise AccessDenied(
                f"there are {most} reply mailboxes already (limits.maxReplyMailboxes): "
                "unregister those that are not needed any more",
                code="too_many",
            )

    def _leave(self, connection: Connection) -> None:
        self._tasks.start(self._forget(connection), name="forget reply mailboxes")

    async def _forget(self, connection: Connection) -> None:
        slices = Slices()
        replies = connection.identity.replies
        while replies:
            subject = replies.pop()
            if self._owners.get(subject) is connection:  # its client may be back already, on another connection
                with suppress(NotFound, StorageError):
                    await self._relay.unregister_endpoint(subject)
                del self._owners[subject]
            await slices.rest()


async def unregister_replies(relay: RelayCore) -> None:
    """Unregister every reply mailbox: their connections ended with the last process."""
    slices = Slices()
    for mailbox in relay.bus.mailboxes.endpoints():
        if is_reply(mailbox.subject):
            try:
                await relay.unregister_endpoint(mailbox.subject)
            except StorageError as error:  # a full disk must not end the start; the next one tries again
                logger.warning("%s is still registered: %s", mailbox.subject, error.message)
            await slices.rest()

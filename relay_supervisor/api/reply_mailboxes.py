"""The reply mailboxes of connections: created by the server, private to one connection, and cleaned up in slices.

1. The subject is a hash of a key that only the owner is given. It cannot be guessed, and a recipient that sees the
   subject cannot claim the mailbox.
2. A mailbox belongs to one connection. A client that lost its connection, or saw a restart, presents the key on a new
   one and owns the same mailbox again, whichever connection had it.
3. No other connection may read it, not even the operator's while it is owned. Once its connection has ended, an
   operator may peek at, claim and finish the remaining messages.
4. When a connection ends, its mailboxes are unregistered in slices of a few ms, with others served in between.
5. A token has at most `limits.maxReplyMailboxes` over all its connections; so has each connection of the operator.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex

from relay_core.core import RelayCore
from relay_core.errors import AccessDenied, NotFound, StorageError
from relay_core.messages.subjects import REPLY_PREFIX, is_pattern, is_reply
from relay_core.protocol.publishing import PublishParams
from relay_core.tasks import Tasks
from relay_supervisor.api.consumers import PushConsumers
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.flow_control import TimeSlices

logger = logging.getLogger(__name__)

_NAME_CHARS = 32


class ReplyMailboxes:
    """The owner of each reply mailbox."""

    def __init__(self, relay: RelayCore, consumers: PushConsumers, tasks: Tasks) -> None:
        self._relay = relay
        self._consumers = consumers
        self._tasks = tasks
        self._owners: dict[str, Connection] = {}

    async def open(self, connection: Connection, key: str | None) -> tuple[str, str]:
        """Open a mailbox for a connection, or reopen the one of a key; return its subject and key.

        Raises:
            AccessDenied: with code `too_many`, if the limit is reached.
        """
        self._check_limit(connection)
        key = key or token_hex(32)
        subject = f"{REPLY_PREFIX}{sha256(key.encode()).hexdigest()[:_NAME_CHARS]}"
        before = self._owners.get(subject)
        if before is not None and before is not connection:
            before.identity.replies.discard(subject)
            self._consumers.unsubscribe_from(before, subject)
        self._owners[subject] = connection  # before the first await
        connection.identity.replies.add(subject)
        connection.on_closed(lambda: self._leave(connection), key=self)
        await self._relay.register_endpoint(subject)
        if connection.closed:  # meanwhile, and its cleanup may have missed this mailbox
            self._leave(connection)
        return subject, key

    def close(self, connection: Connection, subject: str) -> None:
        """Remove a mailbox from a connection."""
        connection.identity.replies.discard(subject)
        if self._owners.get(subject) is connection:
            del self._owners[subject]

    def check_reader(self, connection: Connection, pattern: str, *, leftovers: bool = False) -> None:
        """Check that a connection may read the mail of a subject or a pattern.

        With `leftovers` the operator may also read the rest of a mailbox whose connection has ended.

        Raises:
            AccessDenied: if some of it belongs to another client.
        """
        identity = connection.identity
        if not is_reply(pattern):
            identity.check_reader(pattern)
        elif pattern not in identity.replies and not (leftovers and identity.operator and self._is_left(pattern)):
            raise AccessDenied(
                f"{pattern} is not a reply mailbox of this connection: open one with replies.open",
                code="subject_not_yours",
                subject=pattern,
            )

    def check_reply_to(self, connection: Connection, params: PublishParams) -> None:
        """Check that `reply_to` is the client's own mailbox, or one that it may answer to itself.

        Raises:
            AccessDenied: if the mailbox belongs to another client.
        """
        subject = params.reply_to
        if subject is None or not is_reply(subject) or subject in connection.identity.replies:
            return
        if not self._relay.may_answer(
            subject,
            params.sender,
            connection.identity.reader,
            parent_id=params.parent_id,
            payload=params.payload,
        ):
            raise AccessDenied(
                f"{subject} is not a reply mailbox of this connection: open one with replies.open, or omit replyTo",
                code="reply_not_yours",
                subject=subject,
            )

    def _is_left(self, subject: str) -> bool:
        owner = self._owners.get(subject)
        return not is_pattern(subject) and (owner is None or owner.closed)

    def _check_limit(self, connection: Connection) -> None:
        most = self._relay.config.limits.max_reply_mailboxes
        token = connection.identity.token
        owners = {connection}
        if token is not None:  # a mailbox that is being cleaned up counts too
            owners |= {owner for owner in set(self._owners.values()) if owner.identity.token == token}
        if sum(len(owner.identity.replies) for owner in owners) >= most:
            raise AccessDenied(
                f"there are already {most} reply mailboxes (limits.maxReplyMailboxes): "
                "unregister those that are no longer needed",
                code="too_many",
            )

    def _leave(self, connection: Connection) -> None:
        self._tasks.start(self._forget(connection), name="forget reply mailboxes")

    async def _forget(self, connection: Connection) -> None:
        slices = TimeSlices()
        replies = connection.identity.replies
        while replies:
            subject = replies.pop()
            if self._owners.get(subject) is connection:  # its client may already be back on another connection
                with suppress(NotFound, StorageError):
                    await self._relay.unregister_endpoint(subject)
                del self._owners[subject]
            await slices.pause()


async def unregister_replies(relay: RelayCore) -> None:
    """Unregister every reply mailbox: their connections ended with the previous process."""
    slices = TimeSlices()
    for endpoint in relay.endpoints():
        if is_reply(endpoint.subject):
            try:
                await relay.unregister_endpoint(endpoint.subject)
            except StorageError as error:  # a full disk must not prevent the start; the next start tries again
                logger.warning("%s is still registered: %s", endpoint.subject, error.message)
            await slices.pause()

"""The identity of a connection, and its rights.

1. The server has checked the uid: only processes of the socket's own user (and root) get this far.
2. Without a token the user is the operator. With `auth.requireTokens` every client needs one: the operator's own is a
   file in the data directory, which a process with access to the socket alone cannot read.
3. A token's holder publishes only as subjects that its pattern matches, reads only their messages, and calls only the
   methods marked `AGENTS`. Access rules limit its destinations, as for every sender.
4. No client may publish as ``relay.system.>``, as an adapter, or as a subject that an adapter speaks for.
5. ``relay.reply.>`` are private mailboxes for answers, each owned by one connection (reply_mailboxes.py): no token or
   pattern gives access to another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relay_core.errors import AccessDenied
from relay_core.messages.operator_views import TokenInfo
from relay_core.messages.subjects import SYSTEM_PREFIX, matches_pattern, pattern_covers
from relay_core.protocol.methods import AGENTS, Method


@dataclass(slots=True)
class Identity:
    """The rights of a connection."""

    operator: bool = False
    token: TokenInfo | None = None
    replies: set[str] = field(default_factory=set)
    """Reply mailboxes of this connection."""

    @property
    def reader(self) -> str:
        """Return the name under which the bus records the connection as a reader of questions."""
        return f"token {self.token.id}" if self.token is not None else "operator"

    @property
    def pattern(self) -> str | None:
        """Return the subjects that a token's holder may publish as and read."""
        return self.token.pattern if self.token is not None else None

    def is_mine(self, subject: str) -> bool:
        """Return True if the connection may publish as a subject and read its messages."""
        return self.operator or (self.pattern is not None and matches_pattern(subject, self.pattern))

    def check_method(self, method: Method) -> None:
        """Check that a method may be called.

        Raises:
            AccessDenied: if it may not; the text says what is needed.
        """
        if self.operator:
            return
        if self.pattern is None and method.name != "server.hello":
            raise AccessDenied(
                "this supervisor requires a token: send server.hello with one from 'relay token add'",
                code="token_required",
            )
        if AGENTS not in method.traits:
            raise AccessDenied(f"{method.name} is for the operator: a token cannot call it", code="operator_only")

    def check_sender(self, sender: str, owner_of: Callable[[str], str | None]) -> None:
        """Check that the connection may publish as a sender.

        Raises:
            AccessDenied: if the sender is reserved or belongs to another client.
        """
        if sender.startswith(SYSTEM_PREFIX) or sender == SYSTEM_PREFIX[:-1]:
            raise AccessDenied(f"{sender} is reserved for the bus itself", code="sender_reserved", sender=sender)
        owner = owner_of(sender)
        if owner is not None:
            raise AccessDenied(f"{sender} is reserved for adapter {owner}", code="sender_reserved", sender=sender)
        if not self.is_mine(sender):
            raise AccessDenied(
                f"this connection's token is for {self.pattern}, not for {sender}",
                code="sender_not_yours",
                sender=sender,
            )

    def check_reader(self, pattern: str) -> None:
        """Check that the connection may read the messages of a subject, or of all that a pattern matches.

        Raises:
            AccessDenied: if some of them belong to another client.
        """
        if self.operator:
            return
        if self.pattern is None or not pattern_covers(self.pattern, pattern):
            raise AccessDenied(
                f"this connection's token is for {self.pattern}, not for {pattern}",
                code="subject_not_yours",
                subject=pattern,
            )

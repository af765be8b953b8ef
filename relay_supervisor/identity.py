"""Who is on the other end of a connection, and what that one may do.

1. Only processes of the socket's own user (and root) get this far: the server has checked the uid.
2. Without a token the user is the operator. With `auth.requireTokens` nobody is anything without one: the
   operator's own is a file in the data directory, which whoever only has the socket cannot read.
3. A token's holder publishes only as subjects that its pattern matches, reads only their mail, and calls only
   the methods that the protocol marks so. What it may reach is up to the access rules, as for everyone.
4. Nobody publishes as ``relay.system.>``, as an adapter, or as whom an adapter speaks for.
5. ``relay.reply.>`` are private mailboxes for answers, each of one connection (reply_mailboxes.py): no token and no
   pattern reads another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from relay_core.errors import AccessDenied
from relay_core.operations import TokenInfo
from relay_core.protocol import Method
from relay_core.subjects import SYSTEM_PREFIX, matches_pattern, pattern_covers


@dataclass(slots=True)
class Identity:
    """What one connection may do."""

    operator: bool = False
    token: TokenInfo | None = None
    replies: set[str] = field(default_factory=set)
    """Reply mailboxes of this connection."""

    @property
    def reader(self) -> str:
        """Return what the bus knows the connection's user by, as a reader of questions."""
        return f"token {self.token.id}" if self.token is not None else "operator"

    @property
    def pattern(self) -> str | None:
        """Return the subjects that a token's holder may publish as and read."""
        return self.token.pattern if self.token is not None else None

    def is_mine(self, subject: str) -> bool:
        """Tell whether the connection may speak as a subject and read its mail."""
        return self.operator or (self.pattern is not None and matches_pattern(subject, self.pattern))

    def check_method(self, method: Method) -> None:
        """Check that a method may be called.

        Raises:
            AccessDenied: if not; the text says what is needed.
        """
        if self.operator:
            return
        if self.pattern is None and method.name != "server.hello":
            raise AccessDenied(
                "this supervisor wants a token: say server.hello with one made by 'relay token add'",
                code="token_required",
            )
        if not method.for_agents:
            raise AccessDenied(f"{method.name} is the operator's: a token cannot call it", code="operator_only")

    def check_sender(self, sender: str, owner_of: Callable[[str], str | None]) -> None:
        """Check that the connection may publish as a sender.

        Raises:
            AccessDenied: if the name is another's.
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
        """Check that the connection may read the mail of a subject, or of all that a pattern matches.

        Raises:
            AccessDenied: if some of it is another's.
        """
        if self.operator:
            return
        if self.pattern is None or not pattern_covers(self.pattern, pattern):
            raise AccessDenied(
                f"this connection's token is for {self.pattern}, not for {pattern}",
                code="subject_not_yours",
                subject=pattern,
            )

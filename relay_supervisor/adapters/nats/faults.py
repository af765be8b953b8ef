"""What can go wrong with a server, told apart by what it means for a message.

- `Refusal`: the server has answered, and will not have us until somebody changes something.
- `Lost`: there is no connection, or none any more. It is tried again.
- `NotSent`: the message has not left: it may be sent again as it is.
- `Unsure`: the message has left and nobody has said whether it arrived: only the same id may be sent again.
"""

from __future__ import annotations


class Fault(Exception):
    """A sentence that an operator can act on; it has no secret and no payload in it."""


class Refusal(Fault):
    """The server will not have us."""


class Lost(Fault):
    """There is no connection."""


class NotSent(Fault):
    """The message has not left."""


class Unsure(Fault):
    """Nobody knows whether the message arrived."""


def describe(error: BaseException) -> str:
    """Return an error as one line without what the library says in front of it."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = " ".join(said.split()).removeprefix("nats: ")
    return text or type(error).__name__

"""The errors of a server, by what they mean for a message.

- `Refusal`: the server responded, and refuses us until an operator changes something.
- `Lost`: there is no connection. It is retried.
- `NotSent`: the message was not sent and may be sent again.
- `OutcomeUnknown`: the message was sent, but not acknowledged: it may only be sent again under the same id.
"""

from __future__ import annotations


class Fault(Exception):
    """A sentence for an operator, without secrets and payloads."""


class Refusal(Fault):
    """The server refuses us."""


class Lost(Fault):
    """There is no connection."""


class NotSent(Fault):
    """The message has not left."""


class OutcomeUnknown(Fault):
    """The message may or may not have arrived."""


def describe(error: BaseException) -> str:
    """Return an error as one line, without the library's prefix."""
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = " ".join(message.split()).removeprefix("nats: ")
    return text or type(error).__name__

"""The base classes of protocol models, their limits, and parameters of several methods."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from relay_core.messages.base import WireModel

PROTOCOL_VERSION = 1

MAX_BATCH = 1000
MAX_PAGE = 1000
LIST_PAGE = 500


def check_printable(text: str) -> str:
    """Return a text that is one printable line.

    Raises:
        ValueError: if it is not.
    """
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]


class Params(WireModel):
    """The parameters of a method."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Result(WireModel):
    """The result of a method."""

    model_config: ClassVar[ConfigDict] = ConfigDict(defer_build=True)


class Nothing(Params):
    """No parameters."""


class Done(Result):
    """An empty result."""


class SubjectParams(Params):
    """A subject."""

    subject: str
    """Of an endpoint; not a pattern."""


class PatternParams(Params):
    """A subject or a pattern."""

    pattern: str
    """`*` matches one part of a subject, a final `>` all that follow."""


class IdParams(Params):
    """An id."""

    id: str
    """Of a token or a message; for a conversation, of its first message (`traceId`)."""


class ListParams(Params):
    """A page of a list."""

    limit: Limit = LIST_PAGE
    cursor: str | None = None
    """From the previous page."""

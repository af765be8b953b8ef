"""Endpoints: registered subjects, each with a mailbox that survives restarts.

``mailboxes/{hash}/endpoint.json`` holds the mailbox's subject, since a hash cannot be reversed. `registered` is false
for a mailbox that only holds messages: of an endpoint that was unregistered, or of a subject that never was one (dead
letters, or messages for a subscription without endpoint).
"""

from __future__ import annotations

from pathlib import Path

import orjson

from relay_core.messages.base import WireModel
from relay_core.messages.delivery import TargetKind
from relay_core.messages.subjects import subject_hash
from relay_core.storage.atomic_file import atomic_write
from relay_core.storage.trusted_file import read_regular_file

_NAME = "endpoint.json"
_LIMIT = 64 * 1024


class EndpointFile(WireModel):
    """The content of endpoint.json."""

    subject: str
    registered_at: str
    registered: bool = True
    kind: str = TargetKind.ENDPOINT


class Endpoint(WireModel):
    """A registered subject and its mailbox."""

    subject: str
    hash: str
    """The first 12 hex digits of the subject's SHA-256; the mailbox's name on disk and in results."""
    maildir_path: Path
    registered_at: str
    """An ISO 8601 timestamp."""


def read_endpoint_file(mailbox: Path) -> EndpointFile | None:
    """Return the content of a mailbox's endpoint.json, or None if it is missing, invalid or of another mailbox."""
    try:
        about = EndpointFile.model_validate(orjson.loads(read_regular_file(str(mailbox / _NAME), limit=_LIMIT)))
    except (FileNotFoundError, ValueError):
        return None
    return about if subject_hash(about.subject) == mailbox.name else None


def write_endpoint_file(mailbox: Path, about: EndpointFile, *, sync: bool) -> None:
    """Write a mailbox's endpoint.json atomically."""
    atomic_write(mailbox / _NAME, orjson.dumps(about.to_wire()), sync=sync)

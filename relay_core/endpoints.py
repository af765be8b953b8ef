"""Endpoints: registered subjects, each with a mailbox that survives restarts.

``mailboxes/{hash}/endpoint.json`` says whose mailbox it is, since a hash cannot be read back.
`registered` is false for a mailbox that merely holds mail: of an endpoint that was unregistered,
or of a subject that never was one (its dead letters, or mail for a subscription without endpoint).
"""

from __future__ import annotations

from pathlib import Path

import orjson

from relay_core.delivery import TargetKind
from relay_core.files import atomic_write
from relay_core.model import WireModel
from relay_core.own_files import read_regular
from relay_core.subjects import subject_hash

_NAME = "endpoint.json"
_LIMIT = 64 * 1024


class EndpointFile(WireModel):
    """What endpoint.json holds."""

    subject: str
    registered_at: str
    registered: bool = True
    kind: str = TargetKind.ENDPOINT


class Endpoint(WireModel):
    """A registered subject and where its mail lies."""

    subject: str
    hash: str
    """The first 12 hex digits of the subject's SHA-256; the mailbox's name on disk and in answers."""
    maildir_path: Path
    registered_at: str
    """An ISO 8601 instant."""


def read_endpoint_file(mailbox: Path) -> EndpointFile | None:
    """Return what a mailbox directory says it is, or None if it does not say, or says what cannot be."""
    try:
        about = EndpointFile.model_validate(orjson.loads(read_regular(str(mailbox / _NAME), limit=_LIMIT)))
    except (FileNotFoundError, ValueError):
        return None
    return about if subject_hash(about.subject) == mailbox.name else None


def write_endpoint_file(mailbox: Path, about: EndpointFile, *, sync: bool) -> None:
    """Say whose mailbox a directory is, in one step."""
    atomic_write(mailbox / _NAME, orjson.dumps(about.to_wire()), sync=sync)

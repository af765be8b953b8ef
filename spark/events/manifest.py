"""What has been ingested of one date: ``manifest/date=YYYY-MM-DD.json``, beside the tables.

1. Writing the manifest commits an ingest: a Parquet file that is not listed does not count, whoever made it.
2. A segment is known by its name and taken once; a copy of one is known by its digest, listed, and not taken.
3. The manifest grows with the segments of its date and with nothing else.

A manifest that cannot be read is an error, never an empty one: everything would be taken a second time.
"""

from __future__ import annotations

from datetime import date
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from spark.storage.locations import Storage, StorageError


class _Part(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Taken(_Part):
    """A segment that is in the tables, or known not to belong there."""

    bytes: int
    digest: str
    events: int = 0
    bad: int = 0
    copy_of: str | None = None
    """The segment whose bytes it repeats."""


class Counts(_Part):
    """What was found in the date's segments."""

    events: int = 0
    duplicates: int = 0
    """Segments that were copies of others."""
    first_time: int | None = None
    last_time: int | None = None
    kinds: dict[str, int] = {}
    reasons: dict[str, int] = {}
    """Lines that were put aside, by reason."""

    @property
    def bad(self) -> int:
        """Return how many lines were put aside, whatever the reason."""
        return sum(self.reasons.values())


class Manifest(_Part):
    """The segments of one date, and the Parquet files they became."""

    version: Literal[1] = 1
    segments: dict[str, Taken] = {}
    files: list[str] = []
    """The events, relative to the tables."""
    aside: list[str] = []
    """The lines that could not be taken."""
    counts: Counts = Counts()
    ingested_at: int = 0
    """When it last changed, in milliseconds since the epoch."""


def manifest_name(day: date) -> str:
    """Return where a date's manifest lies."""
    return f"manifest/date={day}.json"


def read_manifest(tables: Storage, day: date) -> Manifest | None:
    """Return a date's manifest, or None if nothing was ingested.

    Raises:
        StorageError: if it cannot be read.
    """
    name = manifest_name(day)
    try:
        return Manifest.model_validate_json(tables.read(name))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StorageError(
            f"{tables.root}/{name} cannot be read ({f'{where}: ' if where else ''}{first['msg']}): to ingest the date "
            f"again, remove it, {tables.root}/events/date={day} and {tables.root}/aside/date={day}"
        ) from None


def write_manifest(tables: Storage, day: date, manifest: Manifest) -> None:
    """Commit what was ingested."""
    tables.write(manifest_name(day), manifest.model_dump_json(by_alias=True, exclude_none=True, indent=1).encode())

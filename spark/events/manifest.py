"""The ingested segments and files of one date: ``manifest/date=YYYY-MM-DD.json``, beside the tables.

1. Writing the manifest commits an ingest: Parquet files that are not listed do not count.
2. A segment is identified by its name and ingested once; a copy is recognised by its digest, listed, and not ingested.
3. The manifest grows only with the segments of its date.

An unreadable manifest is an error and never treated as empty: that would ingest everything a second time.
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
    """A segment that was ingested, or recognised as a copy."""

    bytes: int
    digest: str
    events: int = 0
    bad: int = 0
    copy_of: str | None = None
    """The segment of which it is a copy."""


class Counts(_Part):
    """Counts over the date's segments."""

    events: int = 0
    duplicates: int = 0
    """Segments that were copies of others."""
    first_time: int | None = None
    last_time: int | None = None
    kinds: dict[str, int] = {}
    reasons: dict[str, int] = {}
    """Bad lines by reason."""

    @property
    def bad(self) -> int:
        """Return the number of bad lines."""
        return sum(self.reasons.values())


class Manifest(_Part):
    """The segments of one date, and the Parquet files they became."""

    version: Literal[1] = 1
    segments: dict[str, Taken] = {}
    files: list[str] = []
    """The events, relative to the tables."""
    aside: list[str] = []
    """The bad lines, relative to the tables."""
    counts: Counts = Counts()
    ingested_at: int = 0
    """When it last changed, in milliseconds since the epoch."""


def manifest_name(day: date) -> str:
    """Return the path of a date's manifest, relative to the tables."""
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
        where = "".join(f"{part}: " for part in first["loc"])
        raise StorageError(
            f"{tables.root}/{name} cannot be read ({where}{first['msg']}): to ingest the date "
            f"again, remove it, {tables.root}/events/date={day} and {tables.root}/aside/date={day}"
        ) from None


def write_manifest(tables: Storage, day: date, manifest: Manifest) -> None:
    """Commit an ingest."""
    tables.write(manifest_name(day), manifest.model_dump_json(by_alias=True, exclude_none=True, indent=1).encode())

"""Where a run reads and writes, and on which Spark: config.json's `jobs.metrics`, overridden by flags.

config.json is read as plain JSON, because this package does not import the bus's configuration. A test compares the
names and defaults with `relay_core.config`. An unreadable config.json stops the run: with the defaults, the report
might go to another place than the operator chose.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from spark.tables.senders import Limits

DEFAULT_DATA_DIR = "~/.dork/relay"


class SettingsError(Exception):
    """The settings are unusable; the text says what to change."""


class Settings(BaseModel):
    """The locations of one run, and its Spark. The rest of `jobs.metrics` belongs to the supervisor."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    events: str
    """The event log: a path, or a URI that Spark understands."""
    output: str
    """The location of tables and reports."""
    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = Field(default_factory=dict)
    keep_days: int = Field(default=90, ge=1)
    limits: Limits = Field(default_factory=Limits)


def read_settings(
    data_dir: Path | None,
    *,
    events: str | None = None,
    output: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings: flags before config.json before the defaults in the data directory.

    Raises:
        SettingsError: if config.json is invalid, or both a master and a Connect server are given.
    """
    directory = data_dir or Path(os.environ.get("RELAY_DATA_DIR") or DEFAULT_DATA_DIR).expanduser()
    path = directory / "config.json"
    config = _read_json(path)
    found: dict[str, Any] = {"events": str(directory / "events"), "output": str(directory / "reports")}
    found |= {name: value for name, value in _section(config, "jobs", "metrics").items() if value not in (None, "")}
    found |= {name: value for name, value in (("events", events), ("output", output)) if value}
    if master or remote:  # a flag for one also replaces the other
        found |= {"master": master, "remote": remote}
    found["limits"] = _section(config, "reliability", "rateLimit")
    try:
        settings = Settings.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if settings.master and settings.remote:
        raise SettingsError("give either a master or a remote (Spark Connect), not both")
    return settings.model_copy(update={"conf": {**settings.conf, **(conf or {})}})


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None


def _section(config: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        config = config.get(key) or {} if isinstance(config, dict) else config
    if not isinstance(config, dict):
        raise SettingsError(f"config.json: {'.'.join(keys)} must be an object")
    return config

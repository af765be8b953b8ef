"""Where a run reads and writes, and on which Spark: config.json's `jobs.metrics`, overruled by flags.

Read as plain JSON, because this package knows nothing of the bus but its event schema. A test holds the names and the
defaults to `relay_core.config`. A config.json that cannot be read stops the run: the defaults might write a report to
another place than the one that the operator has chosen.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from spark.tables.senders import Limits

DEFAULT_DATA_DIR = "~/.dork/relay"


class SettingsError(Exception):
    """What was asked for cannot be done; says what to change."""


class _Section(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Metrics(_Section):
    """What `jobs.metrics` says to Spark; the rest of it is the supervisor's."""

    master: str | None = None
    remote: str | None = None
    events: str | None = None
    output: str | None = None
    conf: dict[str, str] = Field(default_factory=dict)
    keep_days: int = Field(default=90, ge=1)


class RateLimit(_Section):
    """What senders are held to, which their peaks are compared with."""

    enabled: bool = True
    max_per_window: int = Field(default=100, ge=1)
    window_secs: int = Field(default=60, ge=1)
    per_sender_overrides: dict[str, int] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """One run's places and its Spark."""

    events: str
    """Where the event log lies: a path, or a URI that Spark understands."""
    output: str
    """Where tables and reports go."""
    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    keep_days: int = 90
    limits: Limits = field(default_factory=Limits)


def read_settings(
    data_dir: Path | None,
    *,
    events: str | None = None,
    output: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings: flags before config.json before the data directory's own places.

    Raises:
        SettingsError: if config.json is no good, or both a master and a Connect server are named.
    """
    directory = data_dir or Path(os.environ.get("RELAY_DATA_DIR") or DEFAULT_DATA_DIR).expanduser()
    config = _read_json(directory / "config.json")
    try:
        metrics = Metrics.model_validate(_part(config, "jobs", "metrics"))
        rate = RateLimit.model_validate(_part(config, "reliability", "rateLimit"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{directory / 'config.json'}: {where}: {first['msg']}") from None
    if master or remote:  # a flag for one replaces the other, too
        metrics = metrics.model_copy(update={"master": master, "remote": remote})
    if metrics.master and metrics.remote:
        raise SettingsError("a run has either a master or a remote (Spark Connect), not both")
    return Settings(
        events=events or metrics.events or str(directory / "events"),
        output=output or metrics.output or str(directory / "reports"),
        master=metrics.master,
        remote=metrics.remote,
        conf={**metrics.conf, **(conf or {})},
        keep_days=metrics.keep_days,
        limits=Limits(rate.enabled, rate.max_per_window, rate.window_secs, rate.per_sender_overrides),
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None


def _part(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) or {} if isinstance(config, dict) else {}
    return config

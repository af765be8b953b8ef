"""Configuration: defaults < constructor < config.json, merged per field.

Every section is a frozen model with a documented default for each key. An unknown key is an error that names it and the
nearest known key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from relay_core.cron import parse_cron
from relay_core.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Named = Annotated[str, Field(min_length=1)]
Place = Annotated[str, Field(pattern=r"^(/|[Ff][Ii][Ll][Ee]:/|[A-Za-z][A-Za-z0-9+.-]*://)")]
"""An absolute path or a URI: a relative path would depend on the supervisor's working directory."""

DAY_MS = 86_400_000


def refuse_unknown_keys(model: type[BaseModel], data: Any) -> Any:
    """Return the data unchanged, or raise a ValueError that names an unknown key and the nearest known one."""
    if isinstance(data, Mapping):
        known = [field.alias or name for name, field in model.model_fields.items()]
        for key in data:
            if key not in known and key not in model.model_fields:
                raise ValueError(explain_unknown(str(key), known))
    return data


def explain_unknown(key: str, known: list[str]) -> str:
    """Return an error text that names an unknown key and the nearest known one."""
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}")


class ConfigSection(BaseModel):
    """A part of the configuration."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
    )

    @model_validator(mode="before")
    @classmethod
    def _know_every_key(cls, data: Any) -> Any:
        return refuse_unknown_keys(cls, data)


class RateLimitConfig(ConfigSection):
    """The rate at which each sender may publish."""

    enabled: bool = True
    """Whether the rate is limited."""
    window_secs: Positive = 60
    """Length of the sliding window in seconds."""
    max_per_window: Positive = 100
    """Publishes of one sender within a window."""
    per_sender_overrides: dict[str, Positive] = {}
    """Other limits by sender prefix, cut at a token boundary; the longest prefix wins."""


class CircuitBreakerConfig(ConfigSection):
    """When deliveries to a failing target stop, and how it is tried again."""

    enabled: bool = True
    """Whether breakers can open."""
    failure_threshold: Positive = 5
    """Consecutive failures that open a breaker."""
    cooldown_ms: Annotated[int, Field(ge=1_000)] = 30_000
    """Time before an open breaker admits a probe; less than a second would hammer a target that is down."""
    half_open_probe_count: Positive = 1
    """Concurrent probes."""
    success_to_close: Positive = 2
    """Consecutive successful probes that close a breaker."""


class BackpressureConfig(ConfigSection):
    """The capacity of a mailbox."""

    enabled: bool = True
    """Whether a full mailbox refuses messages."""
    max_mailbox_size: Positive = 1000
    """Waiting messages at which a mailbox is full."""
    pressure_warning_at: Ratio = 0.8
    """Share of the maximum at which senders get a warning signal."""


class ReliabilityConfig(ConfigSection):
    """Protection against floods, failing targets and slow consumers."""

    rate_limit: RateLimitConfig = RateLimitConfig()
    circuit_breaker: CircuitBreakerConfig = CircuitBreakerConfig()
    backpressure: BackpressureConfig = BackpressureConfig()


class BudgetConfig(ConfigSection):
    """The ceilings of every message's budget."""

    max_hops: Positive = 5
    """Deliveries in a chain of messages."""
    ttl_ms: Positive = 3_600_000
    """The lifetime of a message."""
    call_budget: Positive = 10
    """Calls in a chain of messages."""


class LimitsConfig(ConfigSection):
    """Limits on sizes and counts."""

    max_payload_bytes: Annotated[int, Field(ge=1, le=64 * 1024 * 1024)] = 1_048_576
    """Size of a payload as JSON."""
    dedupe_entries: NotNegative = 65_536
    """Publishes with a dedupeId whose outcome is remembered, newest first."""
    max_broadcast_bytes: Positive = 32 * 1024 * 1024
    """Bytes that one publish to a pattern may store: matching endpoints × (payload + 1 KiB)."""
    max_reply_mailboxes: Positive = 1000
    """Reply mailboxes of a token, or of one connection of the operator, at a time."""
    max_endpoints_per_token: Positive = 1000
    """Registered endpoints that match a token's pattern."""
    max_subscriptions_per_token: Positive = 1000
    """Subscriptions, to messages or signals, of all connections of a token."""


class DispatchConfig(ConfigSection):
    """How handlers run."""

    handler_timeout_ms: Positive = 30_000
    """Time a handler may take for one message."""


class RetentionConfig(ConfigSection):
    """How long data is kept."""

    unread_ms: Positive = 7 * DAY_MS
    """Age at which an unread message becomes a dead letter."""
    dead_letter_ms: Positive = 7 * DAY_MS
    """Age at which a dead letter is purged."""
    trace_ms: Positive = 7 * DAY_MS
    """Age at which a trace and a closed journal segment are removed."""
    journal_bytes: NotNegative = 64 * 1024 * 1024
    """Total size of the closed journal segments kept, from which a lost index is restored; 0 keeps none."""
    event_days: Positive = 30
    """Days of events kept."""


class EventsConfig(ConfigSection):
    """The event log that Spark reads."""

    enabled: bool = True
    """Whether events are written."""
    max_segment_bytes: Annotated[int, Field(ge=4096)] = 64 * 1024 * 1024
    """Size at which a segment is closed before its hour is over."""


class AuthConfig(ConfigSection):
    """Access to the socket."""

    require_tokens: bool = False
    """Whether a connection without a token is refused; the operator's token is in the data directory."""


class JobConfig(ConfigSection):
    """A periodic job."""

    enabled: bool = True
    """Whether it is scheduled; it can always be run by hand."""
    every_secs: Positive = 3600
    """Seconds between runs."""


class NightlyConfig(ConfigSection):
    """A job that runs once a day in a separate process."""

    enabled: bool = True
    """Whether it is scheduled; it can always be run by hand."""
    at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = "02:15"
    """Time of day, in UTC."""
    timeout_secs: Positive = 7200
    """Time after which it is killed, with all its child processes."""
    command: tuple[str, ...] | None = None
    """A command to run instead of `python -m spark nightly`; its environment has RELAY_DATA_DIR and, if days were
    requested, RELAY_JOB_OPTIONS. Its stdin stays open while the supervisor lives."""
    master: Named | None = None
    """Spark's master, such as `spark://host:7077`; by default, the cores of this machine."""
    remote: Named | None = None
    """A Spark Connect server, such as `sc://host:15002`, instead of a master."""
    events: Place | None = None
    """Where events are read, as an absolute path or a URI; by default, in the data directory."""
    output: Place | None = None
    """Where tables and reports are written, as an absolute path or a URI; by default, in the data directory."""
    conf: dict[str, str] = {}
    """Further Spark settings, by name."""
    keep_days: Positive = 90
    """Days of tables and reports kept."""

    @model_validator(mode="after")
    def _has_one_spark(self) -> NightlyConfig:
        if self.master is not None and self.remote is not None:
            raise ValueError("master and remote exclude each other: a Spark Connect server has its own master")
        return self

    def reports_dir(self, default: Path) -> Path | None:
        """Return the directory of the reports; None if they are not on this machine."""
        if self.output is None:
            return default
        scheme, colon, path = self.output.partition(":")
        if not colon or "/" in scheme:  # a plain path, which may contain a colon
            return Path(self.output)
        # Spark's paths are URIs without escapes.
        return Path("/" + path.removeprefix("//localhost").lstrip("/")) if scheme.lower() == "file" else None


class JobsConfig(ConfigSection):
    """The supervisor's scheduled jobs."""

    expire: JobConfig = JobConfig(every_secs=60)
    """Dead-letter messages whose TTL has passed."""
    purge: JobConfig = JobConfig()
    """Remove dead letters past their retention."""
    unread: JobConfig = JobConfig()
    """Dead-letter messages that have been unread for too long."""
    retention: JobConfig = JobConfig(every_secs=86_400)
    """Remove old traces and events, and unused mailboxes and files."""
    index: JobConfig = JobConfig(every_secs=600)
    """Reconcile the index with the Maildir and checkpoint it."""
    metrics: NightlyConfig = NightlyConfig()
    """Generate the nightly report with Spark."""


_NAME = r"[A-Za-z0-9_-]+"
_SCHEDULE_ID = re.compile(rf"{_NAME}")
_ADDRESS = re.compile(rf"(?:(?:{_NAME}|\*)(?:\.(?:{_NAME}|\*)){{0,15}}|(?:(?:{_NAME}|\*)\.){{0,15}}>)")


def _check_schedule_id(text: str) -> str:
    if len(text) > 64 or not _SCHEDULE_ID.fullmatch(text):
        raise ValueError(f"{text!r} is not an id: use up to 64 letters, digits, '_' and '-'")
    return text


def _check_address(text: str) -> str:
    # As in messages/subjects.py, which this module cannot import.
    if len(text) > 255 or not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is not a subject or a pattern, such as 'relay.agent.writer' or 'relay.agent.*'")
    return text


def _check_subject(text: str) -> str:
    _check_address(text)
    if "*" in text or ">" in text:
        raise ValueError(f"{text!r} must be a subject without wildcards")
    return text


def _check_cron(text: str) -> str:
    parse_cron(text)
    return text


class ScheduleConfig(ConfigSection):
    """A message that is published at set times, from `relay.system.pulse.ID`."""

    id: Annotated[str, AfterValidator(_check_schedule_id)]
    """Its name: letters, digits, `_` and `-`."""
    to: Annotated[str, AfterValidator(_check_address)]
    """The subject to publish to, or a pattern."""
    payload: Any = None
    """The payload of its messages."""
    cron: Annotated[str, AfterValidator(_check_cron)] | None = None
    """Five fields in UTC (minute, hour, day of the month, month, day of the week), such as `0 9 * * mon-fri`. Either
    this or `everySecs`."""
    every_secs: Positive | None = None
    """Seconds between messages. The times are multiples of it since 1970-01-01 00:00 UTC: 900 is every full quarter of
    an hour."""
    reply_to: Annotated[str, AfterValidator(_check_subject)] | None = None
    """The subject for answers and failure notices."""
    catch_up: Literal["once", "skip"] = "skip"
    """What follows if times were missed by more than a minute: one message for all of them, or none."""
    enabled: bool = True
    """Whether it is scheduled; it can always be run by hand."""

    @model_validator(mode="after")
    def _has_one_timing(self) -> ScheduleConfig:
        if (self.cron is None) == (self.every_secs is None):
            raise ValueError(f"schedule {self.id} needs one of cron and everySecs")
        return self


def _check_schedules(schedules: tuple[ScheduleConfig, ...]) -> tuple[ScheduleConfig, ...]:
    ids = [schedule.id for schedule in schedules]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"two schedules have the id {id!r}")
    return schedules


class LogsConfig(ConfigSection):
    """The supervisor's log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    format: Literal["auto", "human", "json"] = "auto"
    """For people or for programs; `auto` is `human` if stderr is a terminal."""


class PrometheusConfig(ConfigSection):
    """Prometheus metrics; needs the extra `prometheus`."""

    enabled: bool = False
    """Whether metrics are served."""
    port: Annotated[int, Field(ge=0, le=65535)] = 9464
    """Port on 127.0.0.1; 0 lets the system choose."""


class TelemetryConfig(ConfigSection):
    """OpenTelemetry spans; needs the extra `telemetry`."""

    enabled: bool = False
    """Whether spans are exported."""
    endpoint: str = "http://127.0.0.1:4318/v1/traces"
    """Where an OTLP collector listens for traces over HTTP."""


class RelayConfig(ConfigSection):
    """All settings, as in config.json."""

    durability: Literal["fsync", "os"] = "fsync"
    """What an acknowledged publish survives: power loss (fsync) or only kill -9 (os)."""
    reliability: ReliabilityConfig = ReliabilityConfig()
    budget: BudgetConfig = BudgetConfig()
    limits: LimitsConfig = LimitsConfig()
    dispatch: DispatchConfig = DispatchConfig()
    retention: RetentionConfig = RetentionConfig()
    events: EventsConfig = EventsConfig()
    auth: AuthConfig = AuthConfig()
    jobs: JobsConfig = JobsConfig()
    schedules: Annotated[tuple[ScheduleConfig, ...], AfterValidator(_check_schedules)] = ()
    """Messages that are published at set times, from `relay.system.pulse.ID`."""
    logs: LogsConfig = LogsConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


def merge_config(base: RelayConfig, overlay: dict[str, Any], *, path: str | None = None) -> RelayConfig:
    """Return `base` with the fields that `overlay` (camelCase JSON data) names.

    Raises:
        ConfigError: names the invalid key and, for an unknown key, the nearest known one.
    """
    merged = _deep_merge(base.model_dump(by_alias=True), overlay)
    try:
        return RelayConfig.model_validate(merged)
    except ValidationError as error:
        raise _explain(error, path) from error


def load_config(path: Path, base: RelayConfig, read: Callable[[Path], bytes]) -> RelayConfig:
    """Return `base` overlaid with config.json; a missing file changes nothing.

    `read` is `read_trusted` or a data directory's `read`; this module performs no I/O.

    Raises:
        ConfigError: if the file cannot be read or used.
    """
    try:
        data = read(path)
    except FileNotFoundError:
        return base
    except ValueError as error:
        raise ConfigError(str(error), path=str(path)) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    try:
        overlay = orjson.loads(data)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}", path=str(path)) from error
    if not isinstance(overlay, dict):
        raise ConfigError(f"{path} must hold one JSON object", path=str(path))
    return merge_config(base, overlay, path=str(path))


def _deep_merge(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in overlay.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _deep_merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _explain(error: ValidationError, path: str | None) -> ConfigError:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f" (got {first['input']!r})"
    return ConfigError(": ".join(filter(None, [path, key, message + got])), path=path, key=key)

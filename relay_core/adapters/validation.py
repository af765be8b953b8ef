"""Validation of adapters before they are added: plugins are third-party code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from relay_core.adapters.interface import DEFAULT_TIMEOUT_SECS, DRAIN_TIMEOUT_SECS, Adapter, AdapterStatus
from relay_core.errors import ConfigError, InvalidSubject
from relay_core.messages.subjects import adapter_subject, validate_subject


class AdapterSettings(NamedTuple):
    """An operator's settings, which replace the attributes of an adapter; None keeps the attribute."""

    priority: int | None = None
    rate: float | None = None
    drain: float | None = None


NO_SETTINGS: AdapterSettings = AdapterSettings()


class AdapterTraits(NamedTuple):
    """The attributes of an adapter, as they were when it was added, or as the operator set them."""

    id: str
    patterns: tuple[str, ...]
    detached: bool
    priority: int
    rate: float | None
    timeout: float
    senders: tuple[str, ...] = ()
    lane: Callable[[str], str | None] | None = None
    max_in_flight: int | None = None
    drain: float = DRAIN_TIMEOUT_SECS
    bound: bool = False

    @property
    def subject(self) -> str:
        """Return the subject of its main mailbox, which is also its sender."""
        return adapter_subject(self.id)


def read_shape(adapter: Adapter, settings: AdapterSettings = NO_SETTINGS) -> AdapterTraits:
    """Return the attributes of an adapter; the operator's settings win.

    Raises:
        ConfigError: if it does not implement Adapter; the text names the attribute.
    """
    id = _read_id(adapter)
    for name in ("start", "stop", "deliver"):
        if not inspect.iscoroutinefunction(getattr(adapter, name, None)):
            raise _invalid(id, name, "must be an async method")
    health = getattr(adapter, "health", None)
    if health is not None and not inspect.iscoroutinefunction(health):
        raise _invalid(id, "health", "must be an async method, if it exists")
    if not isinstance(getattr(adapter, "status", None), AdapterStatus):
        raise _invalid(id, "status", "must be an AdapterStatus")
    for name in ("detached", "bound"):
        if not isinstance(flag := getattr(adapter, name, False), bool):
            raise _invalid(id, name, f"must be true or false, not {flag!r}")
    priority = getattr(adapter, "priority", 0)
    if not isinstance(priority, int):
        raise _invalid(id, "priority", f"must be a whole number, not {priority!r}")
    rate = getattr(adapter, "rate", None)
    if rate is not None and not _is_positive(rate):
        raise _invalid(id, "rate", f"must be messages per second, above 0, or None, not {rate!r}")
    timeout = _read_seconds(adapter, id, "timeout", DEFAULT_TIMEOUT_SECS)
    drain = _read_seconds(adapter, id, "drain", DRAIN_TIMEOUT_SECS)
    lane = getattr(adapter, "lane", None)
    if lane is not None and (not callable(lane) or inspect.iscoroutinefunction(lane)):
        raise _invalid(id, "lane", "must be a plain method, if it exists")
    in_flight = getattr(adapter, "max_in_flight", None)
    if in_flight is not None and (not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1):
        raise _invalid(id, "max_in_flight", f"must be a whole number above 0, or None, not {in_flight!r}")
    patterns = _read_patterns(id, "patterns", getattr(adapter, "patterns", None))
    if not patterns:
        raise _invalid(id, "patterns", "must be a list of at least one pattern, not an empty one")
    senders = _read_patterns(id, "senders", getattr(adapter, "senders", ()))
    return AdapterTraits(
        id=id,
        patterns=patterns,
        detached=getattr(adapter, "detached", False),
        priority=priority if settings.priority is None else settings.priority,
        rate=rate if settings.rate is None else settings.rate,
        timeout=timeout,
        senders=senders,
        lane=lane,
        max_in_flight=in_flight,
        drain=drain if settings.drain is None else settings.drain,
        bound=getattr(adapter, "bound", False),
    )


def _read_id(adapter: Adapter) -> str:
    id: Any = getattr(adapter, "id", None)
    try:
        if not isinstance(id, str) or "." in id:
            raise ConfigError(f"an adapter's id must be one subject token, not {id!r}", key="id")
        validate_subject(adapter_subject(id))
    except InvalidSubject as error:
        raise ConfigError(f"an adapter's id must be one subject token: {error.message}", key="id") from error
    return id


def _read_patterns(id: str, part: str, patterns: Any) -> tuple[str, ...]:
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise _invalid(id, part, f"must be a list of patterns, not {patterns!r}")
    for pattern in patterns:
        try:
            validate_subject(pattern, allow_wildcards=True)
        except InvalidSubject as error:
            raise _invalid(id, part, error.message) from error
    return tuple(dict.fromkeys(patterns))


def _read_seconds(adapter: Adapter, id: str, part: str, default: float) -> float:
    seconds: float = getattr(adapter, part, default)
    if not _is_positive(seconds):
        raise _invalid(id, part, f"must be seconds, above 0, not {seconds!r}")
    return seconds


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number) and number > 0


def _invalid(id: str, part: str, problem: str) -> ConfigError:
    return ConfigError(f"adapter {id}: {part} {problem}", key=part)

"""The shape of an adapter, checked before it is let near the bus: plugins are written by strangers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from relay_core.adapters.interface import DEFAULT_TIMEOUT_SECS, DRAIN_TIMEOUT_SECS, Adapter, AdapterStatus
from relay_core.errors import ConfigError, InvalidSubject
from relay_core.messages.subjects import adapter_subject, validate_subject


class AdapterTraits(NamedTuple):
    """What an adapter says of itself, as it was when it was added."""

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
        """Return the subject of its main mailbox, which it also speaks as."""
        return adapter_subject(self.id)


def read_shape(adapter: Adapter) -> AdapterTraits:
    """Return what an adapter says of itself.

    Raises:
        ConfigError: if it has not the shape of an adapter; the text names the part at fault.
    """
    id = _read_id(adapter)
    for name in ("start", "stop", "deliver"):
        if not inspect.iscoroutinefunction(getattr(adapter, name, None)):
            raise _misshapen(id, name, "must be an async method")
    health = getattr(adapter, "health", None)
    if health is not None and not inspect.iscoroutinefunction(health):
        raise _misshapen(id, "health", "must be an async method, or not be there")
    if not isinstance(getattr(adapter, "status", None), AdapterStatus):
        raise _misshapen(id, "status", "must be an AdapterStatus")
    for name in ("detached", "bound"):
        if not isinstance(flag := getattr(adapter, name, False), bool):
            raise _misshapen(id, name, f"must be true or false, not {flag!r}")
    priority = getattr(adapter, "priority", 0)
    if not isinstance(priority, int):
        raise _misshapen(id, "priority", f"must be a whole number, not {priority!r}")
    rate = getattr(adapter, "rate", None)
    if rate is not None and not _is_positive(rate):
        raise _misshapen(id, "rate", f"must be messages per second, above 0, or None, not {rate!r}")
    timeout = getattr(adapter, "timeout", DEFAULT_TIMEOUT_SECS)
    if not _is_positive(timeout):
        raise _misshapen(id, "timeout", f"must be seconds, above 0, not {timeout!r}")
    drain = getattr(adapter, "drain", DRAIN_TIMEOUT_SECS)
    if not _is_positive(drain):
        raise _misshapen(id, "drain", f"must be seconds, above 0, not {drain!r}")
    lane = getattr(adapter, "lane", None)
    if lane is not None and (not callable(lane) or inspect.iscoroutinefunction(lane)):
        raise _misshapen(id, "lane", "must be a plain method, or not be there")
    in_flight = getattr(adapter, "max_in_flight", None)
    if in_flight is not None and (not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1):
        raise _misshapen(id, "max_in_flight", f"must be a whole number above 0, or None, not {in_flight!r}")
    patterns = _read_patterns(id, "patterns", getattr(adapter, "patterns", None))
    if not patterns:
        raise _misshapen(id, "patterns", "must be a list of at least one pattern, not an empty one")
    senders = _read_patterns(id, "senders", getattr(adapter, "senders", ()))
    return AdapterTraits(
        id=id,
        patterns=patterns,
        detached=getattr(adapter, "detached", False),
        priority=priority,
        rate=rate,
        timeout=timeout,
        senders=senders,
        lane=lane,
        max_in_flight=in_flight,
        drain=drain,
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
        raise _misshapen(id, part, f"must be a list of patterns, not {patterns!r}")
    for pattern in patterns:
        try:
            validate_subject(pattern, allow_wildcards=True)
        except InvalidSubject as error:
            raise _misshapen(id, part, error.message) from error
    return tuple(dict.fromkeys(patterns))


def _is_positive(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number) and number > 0


def _misshapen(id: str, part: str, problem: str) -> ConfigError:
    return ConfigError(f"adapter {id}: {part} {problem}", key=part)

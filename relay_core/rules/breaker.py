"""Circuit breakers: deliveries to a failing target stop, then resume with a few probes.

::

    state      check(key)                        success                      failure
    CLOSED     admit                             failures = 0                 failures + 1; at the threshold → OPEN
    OPEN       refuse; cooldown over → HALF_OPEN nothing                      nothing
    HALF_OPEN  admit while a permit is free      successes + 1; enough → CLOSED   → OPEN, a new cooldown

1. The cooldown runs on the monotonic clock; wall time is for display. It is compared with the current configuration, so
   a hot reload shortens or lengthens it for breakers that are already open.
2. In HALF_OPEN at most `half_open_probe_count` deliveries are in flight: `check` takes a permit, and any outcome or
   `release` returns it. `release` is for a delivery that never reached its target and changes nothing else.
3. While OPEN, outcomes of deliveries admitted earlier change nothing: a late failure does not extend the cooldown, a
   late success does not close the breaker. In HALF_OPEN every outcome counts.
4. A breaker that an operator has forced open admits no probes until `reset` or a forced CLOSED.
5. Disabled breakers admit everything and count nothing, unless an operator forced them open; their state is kept.
6. There are no timers: the first `check` after the cooldown turns OPEN into HALF_OPEN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from relay_core.clock import Clock, SystemClock
from relay_core.config import CircuitBreakerConfig, RelayConfig, ReliabilityConfig, merge_config
from relay_core.messages.base import WireModel

KEPT_TRANSITIONS = 10


class CircuitState(StrEnum):
    """The state of a breaker."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class BreakerVerdict(NamedTuple):
    """Whether a delivery may be attempted."""

    allowed: bool
    reason: str | None
    state: CircuitState


class Transition(NamedTuple):
    """A change of state and its reason."""

    at_ms: int
    """Wall time in milliseconds."""
    state: CircuitState
    """The new state."""
    why: str


class CircuitStatus(WireModel):
    """The state of a breaker and its recent history."""

    state: CircuitState
    consecutive_failures: int
    opened_at: int | None = None
    """When it last opened, in epoch milliseconds; None while CLOSED."""
    half_open_successes: int
    """Successful probes since it was last open."""
    forced: bool
    """Held open by an operator."""
    transitions: tuple[Transition, ...] = ()
    """The ten most recent changes at most, oldest first."""


class BreakerState(CircuitStatus):
    """A breaker in a listing."""

    key: str
    """The target's hash."""
    retry_in_ms: int | None = None
    """Time until a probe is admitted; None while forced open."""


OnTransition = Callable[[str, CircuitState, CircuitState, str], None]

# A global is twice as fast as an enum member, and `check` runs for every delivery.
_CLOSED, _OPEN, _HALF_OPEN = CircuitState.CLOSED, CircuitState.OPEN, CircuitState.HALF_OPEN
_ADMIT = BreakerVerdict(True, None, _CLOSED)
_PROBE = BreakerVerdict(True, None, _HALF_OPEN)


class _Breaker:
    __slots__ = ("failures", "forced", "opened", "opened_at", "probes", "state", "successes", "transitions")

    def __init__(self) -> None:
        self.state = _CLOSED
        self.failures = 0
        self.successes = 0
        self.probes = 0
        self.opened = 0.0
        self.opened_at: int | None = None
        self.forced = False
        self.transitions: deque[Transition] = deque(maxlen=KEPT_TRANSITIONS)


class CircuitBreakers:
    """One breaker per target; `on_transition(key, old, new, why)` is called on every change and must not raise."""

    def __init__(
        self,
        config: CircuitBreakerConfig | Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        on_transition: OnTransition | None = None,
    ) -> None:
        self._config = CircuitBreakerConfig()
        self._clock = clock or SystemClock()
        self._on_transition = on_transition
        self._breakers: dict[str, _Breaker] = {}
        if config is not None:
            self.update_config(config)

    def check(self, key: str) -> BreakerVerdict:
        """Decide whether a delivery may be attempted; an admitted probe holds a permit until its outcome or release."""
        breaker = self._breakers.get(key)
        if breaker is None:
            breaker = self._breakers[key] = _Breaker()
        if breaker.state is _CLOSED or not (self._config.enabled or breaker.forced):
            return _ADMIT
        if breaker.state is _OPEN:
            if breaker.forced or self._cooldown_left_ms(breaker) > 0:
                return self._refuse(key, breaker)
            breaker.successes = 0
            self._move(key, breaker, _HALF_OPEN, "cooldown over")
        if breaker.probes >= self._config.half_open_probe_count:
            return self._refuse(key, breaker)
        breaker.probes += 1
        return _PROBE

    def record_success(self, key: str, *, probe: bool = True) -> None:
        """Record a successful delivery; `probe` is False if it is known to have held no permit."""
        breaker = self._breakers.get(key)
        if breaker is None:
            return
        if probe:
            _return_permit(breaker)
        if breaker.state is _CLOSED:
            breaker.failures = 0
        elif breaker.state is _HALF_OPEN and self._config.enabled:
            breaker.successes += 1
            if breaker.successes >= self._config.success_to_close:
                self._close(key, breaker, f"successful probes: {breaker.successes}")

    def record_failure(self, key: str, *, probe: bool = True) -> None:
        """Record a failed delivery; `probe` is False if it is known to have held no permit."""
        breaker = self._breakers.get(key)
        if breaker is None:
            breaker = self._breakers[key] = _Breaker()
        if probe:
            _return_permit(breaker)
        if breaker.state is _OPEN or not self._config.enabled:
            return
        breaker.failures += 1
        if breaker.state is _HALF_OPEN:
            self._open(key, breaker, "probe failed")
        elif breaker.failures >= self._config.failure_threshold:
            self._open(key, breaker, f"consecutive failures: {breaker.failures}")

    def release(self, key: str) -> None:
        """Return the permit of a probe that never reached its target."""
        breaker = self._breakers.get(key)
        if breaker is not None:
            _return_permit(breaker)

    def retry_in(self, key: str) -> float:
        """Return the seconds until a probe is admitted: 0 if it is now, infinity while forced open.

        While all permits are taken this is unknown: then it is the cooldown, as an interval for asking again.
        """
        breaker = self._breakers.get(key)
        if breaker is None or breaker.state is _CLOSED:
            return 0.0
        if breaker.forced:
            return inf
        if not self._config.enabled:
            return 0.0
        if breaker.state is _OPEN and (left := self._cooldown_left_ms(breaker)) > 0:
            return left / 1000
        return self._config.cooldown_ms / 1000 if breaker.probes >= self._config.half_open_probe_count else 0.0

    def states(self) -> dict[str, BreakerState]:
        """Return the state of every breaker."""
        return {key: self._view(key, breaker) for key, breaker in self._breakers.items()}

    def reset(self, key: str, why: str = "reset") -> None:
        """Close a breaker and forget its failures; its recent transitions stay."""
        breaker = self._breakers.get(key)
        if breaker is None:
            return
        breaker.failures = 0
        breaker.probes = 0
        if breaker.state is not _CLOSED:
            self._close(key, breaker, why)

    def force(self, key: str, state: CircuitState, why: str) -> None:
        """Hold a breaker OPEN until it is reset, or close it now.

        Raises:
            ValueError: if asked for HALF_OPEN, which only a cooldown leads to.
        """
        if state is _HALF_OPEN:
            raise ValueError("a breaker can be forced OPEN or CLOSED, not HALF_OPEN")
        breaker = self._breakers.setdefault(key, _Breaker())
        if state is _CLOSED:
            self.reset(key, why)
        else:
            breaker.forced = True
            self._open(key, breaker, why)

    def forget(self, key: str) -> None:
        """Remove the breaker of a target that is gone; if it is not closed, close it first, so that listeners know."""
        self.reset(key, "its target is gone")
        self._breakers.pop(key, None)

    def update_config(self, config: CircuitBreakerConfig | Mapping[str, Any]) -> None:
        """Use another configuration, or change some keys of the current one; every state is kept.

        Raises:
            ConfigError: if a key or value cannot be used.
        """
        if not isinstance(config, CircuitBreakerConfig):
            whole = RelayConfig(reliability=ReliabilityConfig(circuit_breaker=self._config))
            changes = {to_camel(key): value for key, value in config.items()}
            config = merge_config(whole, {"reliability": {"circuitBreaker": changes}}).reliability.circuit_breaker
        self._config = config

    def _refuse(self, key: str, breaker: _Breaker) -> BreakerVerdict:
        return BreakerVerdict(False, f"circuit open for endpoint {key}", breaker.state)

    def _cooldown_left_ms(self, breaker: _Breaker) -> int:
        # Whole milliseconds: a timer set for the end of the cooldown may fire slightly early.
        return self._config.cooldown_ms - round((self._clock.monotonic() - breaker.opened) * 1000)

    def _open(self, key: str, breaker: _Breaker, why: str) -> None:
        breaker.opened = self._clock.monotonic()
        breaker.opened_at = self._clock.now_ms()
        breaker.successes = 0
        self._move(key, breaker, _OPEN, why)

    def _close(self, key: str, breaker: _Breaker, why: str) -> None:
        breaker.failures = 0
        breaker.successes = 0
        breaker.opened_at = None
        breaker.forced = False
        self._move(key, breaker, _CLOSED, why)

    def _move(self, key: str, breaker: _Breaker, new: CircuitState, why: str) -> None:
        old, breaker.state = breaker.state, new
        breaker.transitions.append(Transition(self._clock.now_ms(), new, why))
        # Forcing an open breaker open belongs in its history, but is not a change.
        if self._on_transition is not None and old is not new:
            self._on_transition(key, old, new, why)

    def _view(self, key: str, breaker: _Breaker) -> BreakerState:
        retry_in = self.retry_in(key)
        return BreakerState(
            key=key,
            state=breaker.state,
            consecutive_failures=breaker.failures,
            opened_at=breaker.opened_at,
            half_open_successes=breaker.successes,
            retry_in_ms=None if retry_in == inf else round(retry_in * 1000),
            forced=breaker.forced,
            transitions=tuple(breaker.transitions),
        )


def _return_permit(breaker: _Breaker) -> None:
    if breaker.probes:
        breaker.probes -= 1

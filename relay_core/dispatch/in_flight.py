"""A message in flight at its only consumer, and the deadlines of those that are handed over."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from relay_core.clock import Clock, Timer, call_later
from relay_core.dispatch.consumer import Ack, Consumer
from relay_core.dispatch.slots import Slots
from relay_core.storage.mailbox import Mailbox
from relay_core.storage.stored_message import StoredMessage

if TYPE_CHECKING:
    from relay_core.dispatch.turns import Turns

_EARLY_SECS = 0.001
"""How much too early a timer may fire."""


class InFlight(Ack):
    """A claimed message, its only consumer, and what the consumer reports."""

    __slots__ = (
        "_turns",
        "consumer",
        "is_handed_over",
        "mailbox",
        "message",
        "probe",
        "slots",
        "started",
        "timeout",
        "work",
    )

    def __init__(
        self,
        turns: Turns,
        mailbox: Mailbox,
        message: StoredMessage,
        consumer: Consumer,
        timeout: float,
        probe: bool,
        slots: Slots | None,
    ) -> None:
        super().__init__()
        self._turns = turns
        self.mailbox = mailbox
        self.message = message
        self.consumer = consumer
        self.timeout = timeout
        self.probe = probe
        self.slots = slots
        """Where it holds a slot."""
        self.started = 0.0
        """Monotonic time at which the consumer got it."""
        self.is_handed_over = False
        """Whether no coroutine waits for the consumer's report."""
        self.work: Coroutine[Any, Any, None] | None = None
        """The consumer's coroutine, if it could not hand the message over."""

    def _record(self) -> None:
        self._turns.handling.record_completion(self.mailbox, self.message)

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        if self.is_handed_over:
            self._turns.reported(self)


class Deadlines:
    """The handed-over messages, and when each takes too long.

    There is a queue and a timer for each length of timeout, so that each queue is in the order of its deadlines, and
    a message costs no timer.
    """

    def __init__(self, clock: Clock, on_due: Callable[[InFlight], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._queues: dict[float, dict[InFlight, None]] = {}
        self._timers: dict[float, Timer] = {}

    def __iter__(self) -> Iterator[InFlight]:
        for queue in self._queues.values():
            yield from queue

    def add(self, flight: InFlight) -> None:
        """Add a message that was handed over just now."""
        timeout = flight.timeout
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = {}
            self._set_timer(timeout, timeout)
        queue[flight] = None

    def remove(self, flight: InFlight) -> None:
        """Remove a message that has ended."""
        if (queue := self._queues.get(flight.timeout)) is not None:
            queue.pop(flight, None)

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in self._timers.values():
            timer.cancel()

    def _set_timer(self, timeout: float, delay: float) -> None:
        self._timers[timeout] = call_later(self._clock, delay, partial(self._fire, timeout))

    def _fire(self, timeout: float) -> None:
        queue = self._queues[timeout]
        for flight in list(queue):
            left = flight.started + timeout - self._clock.monotonic()
            if left > _EARLY_SECS:
                self._set_timer(timeout, left)
                return
            del queue[flight]
            self._on_due(flight)
        if queue:
            self._set_timer(timeout, timeout)
        else:
            del self._queues[timeout], self._timers[timeout]

"""Counts the incoming messages that the bus could not accept for now, for the status.

1. A message is counted once, however often it is sent again, until it is settled. One that is not sent again (the
   stream no longer has it) is forgotten after a while.
2. Each has the message id under which the bus refused it. The same id again means that the bus remembers the refusal,
   so a part of it is on disk, and another attempt cannot succeed.
"""

from __future__ import annotations

from collections import Counter

from relay_core.clock import Clock

MAX_PENDING = 4096
"""Imported messages that may be unsettled; the server sends no more until some are settled."""
_GRACE_SECS = 60.0


class PutOff:
    """The messages by their sequence number."""

    def __init__(self, clock: Clock, delay: float) -> None:
        self._clock = clock
        self._delay = delay
        self._found: dict[int, tuple[float, str, str | None]] = {}
        """Time, reason and message id of each."""
        self._reasons: Counter[str] = Counter()

    def note(self, number: int, why: str, message_id: str | None = None) -> None:
        """Count a message."""
        self.settle(number)
        why = why.replace("_", " ")
        self._found[number] = (self._clock.monotonic(), why, message_id)
        self._reasons[why] += 1

    def settle(self, number: int) -> None:
        """Forget a message."""
        if (found := self._found.pop(number, None)) is not None:
            self._reasons -= Counter({found[1]: 1})  # drops reasons without messages

    def is_remembered(self, number: int, message_id: str) -> bool:
        """Return True if a message was refused under the same id before."""
        return number in self._found and self._found[number][2] == message_id

    def forget_old(self) -> None:
        """Forget messages that were not sent again."""
        before = self._clock.monotonic() - 2 * self._delay - _GRACE_SECS
        for number in [number for number, (at, _, _) in self._found.items() if at < before]:
            self.settle(number)

    @property
    def level(self) -> tuple[frozenset[str], int]:
        """Return what is announced when it changes: the reasons, and the order of magnitude."""
        return frozenset(self._reasons), len(self._found).bit_length()

    def describe(self) -> str | None:
        """Return a sentence for the status, if there are any."""
        if not self._found:
            return None
        listed = ", ".join(f"{count} {why}" for why, count in self._reasons.most_common())
        text = f"{len(self._found)} incoming put off, sent again every {self._delay:g} s ({listed})"
        if len(self._found) >= MAX_PENDING:
            text += ": no more messages come in until some of them are accepted"
        return text

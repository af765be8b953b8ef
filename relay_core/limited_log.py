"""Log lines that are limited by their cause, so that a failure that repeats tells of itself without filling the log.

1. The first line of a cause is written at once, the next at the earliest after `EVERY_SECS`, by the injected clock.
2. The line after a pause says how many were left out since the last one.
3. At most `MOST_CAUSES` are remembered; the one that was logged longest ago is forgotten first.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from relay_core.clock import Clock

EVERY_SECS = 60.0
MOST_CAUSES = 256


class LimitedLog:
    """A logger that writes at most one line a minute for each cause."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._causes: dict[Hashable, tuple[float, int]] = {}
        """When each cause was last logged, and how many lines were left out since."""

    def info(self, cause: Hashable, text: str, *args: object) -> None:
        """Write a line about something that went as it should."""
        self.log(logging.INFO, cause, text, *args)

    def warning(self, cause: Hashable, text: str, *args: object) -> None:
        """Write a line about something that failed and is dealt with."""
        self.log(logging.WARNING, cause, text, *args)

    def error(self, cause: Hashable, text: str, *args: object) -> None:
        """Write a line about something that an operator must deal with."""
        self.log(logging.ERROR, cause, text, *args)

    def log(self, level: int, cause: Hashable, text: str, *args: object) -> None:
        """Write a line, unless its cause had one within the last minute."""
        now = self._clock.monotonic()
        last, left_out = self._causes.get(cause, (None, 0))
        if last is not None and now - last < EVERY_SECS:
            self._causes[cause] = last, left_out + 1
            return
        self._causes.pop(cause, None)
        self._causes[cause] = now, 0  # at the end: the first is the one that was logged longest ago
        if len(self._causes) > MOST_CAUSES:
            del self._causes[next(iter(self._causes))]
        if left_out:
            text += " (%d more like it since the last such line)"
            args = (*args, left_out)
        self._logger.log(level, text, *args)

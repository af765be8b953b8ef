"""Rate-limited logging by cause, so that a repeating failure does not fill the log.

1. The first line of a cause is written immediately, the next after `EVERY_SECS` at the earliest, by the injected clock.
2. The line after a pause says how many were omitted since the last line.
3. At most `MOST_CAUSES` are remembered; the one logged longest ago is dropped first.
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
        """Cause → (time of its last line, lines omitted since)."""

    def info(self, cause: Hashable, text: str, *args: object) -> None:
        """Log at level INFO."""
        self.log(logging.INFO, cause, text, *args)

    def warning(self, cause: Hashable, text: str, *args: object) -> None:
        """Log at level WARNING."""
        self.log(logging.WARNING, cause, text, *args)

    def error(self, cause: Hashable, text: str, *args: object) -> None:
        """Log at level ERROR."""
        self.log(logging.ERROR, cause, text, *args)

    def log(self, level: int, cause: Hashable, text: str, *args: object) -> None:
        """Log a line, unless its cause had one within the last minute."""
        now = self._clock.monotonic()
        last, omitted = self._causes.get(cause, (None, 0))
        if last is not None and now - last < EVERY_SECS:
            self._causes[cause] = last, omitted + 1
            return
        self._causes.pop(cause, None)
        self._causes[cause] = now, 0  # moved to the end: the first was logged longest ago
        if len(self._causes) > MOST_CAUSES:
            del self._causes[next(iter(self._causes))]
        if omitted:
            text += " (%d more like it since the last such line)"
            args = (*args, omitted)
        self._logger.log(level, text, *args)

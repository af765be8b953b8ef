"""A deadline for incomplete lines: a peer that starts a line must complete it within `LINE_SECS`.

Time during which we do not read does not count. One timer serves all lines of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINE_SECS = 30.0


class LineDeadline:
    """Call back if a line is not completed in time."""

    def __init__(
        self, is_pending: Callable[[], bool], is_reading: Callable[[], bool], expire: Callable[[str], None]
    ) -> None:
        self._is_pending = is_pending
        self._is_reading = is_reading
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def restart(self) -> None:
        """Give the line that has just begun its time."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + LINE_SECS
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._check)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if not self._is_pending():
            return
        loop = asyncio.get_running_loop()
        if not self._is_reading():
            self.restart()
        elif loop.time() < self._due:  # the timer was set for an earlier line
            self._timer = loop.call_at(self._due, self._check)
        else:
            self._expire(f"a frame was not completed within {LINE_SECS:g} s")

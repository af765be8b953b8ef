"""Checkpoints: retire journal segments whose content is on disk.

1. One at a time, in a thread. The present segment just grows meanwhile.
2. A checkpoint starts only after every caller that waited for the segment's last transactions has recorded the outcome.
   A waiter needs a few turns of the event loop to wake up, and then records the outcome in one step.
3. `before` runs first, in the same thread: it raises OSError while the segments are still needed elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from relay_core.clock import Clock
from relay_core.journal.journal import Journal
from relay_core.storage.atomic_file import is_full

logger = logging.getLogger(__name__)

_TURNS_TO_WAKE = 8


class Checkpoints:
    """Run the checkpoints of one journal."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.before: Callable[[], None] = lambda: None
        """Called in a thread before segments are retired: waits until the files and the index have their content."""
        self.last_ms: int | None = None
        """When the last checkpoint ended, in epoch milliseconds."""
        self._journal = journal
        self._clock = clock
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._running = False
        self._closed = False

    def begin(self) -> bool:
        """Start a new segment and retire the old ones in the background, unless a checkpoint is running.

        Return False if the last lines of the old segment could not be synced.
        """
        if self._running:
            return True
        try:
            is_synced = self._journal.rotate()
        except OSError as error:
            logger.warning("journal: cannot start a new segment: %s", error)
            return True
        self._running = True
        self._loop.call_soon_threadsafe(self._start, _TURNS_TO_WAKE)
        return is_synced

    def run(self) -> None:
        """Retire the closed segments. Blocks.

        Raises:
            OSError: if the Maildir or the index does not have all of their content; the segments stay.
        """
        present = self._journal.sequence
        self.before()
        self._journal.checkpoint(present)  # messages of a segment that was started meanwhile may have no file yet
        self.last_ms = self._clock.now_ms()

    def stop(self) -> None:
        """Start no further checkpoint."""
        self._closed = True

    def close(self) -> None:
        """Retire every segment and close the journal. Blocks."""
        if self._thread is not None:
            self._thread.join()
        try:
            rotated = self._rotate()
            self.before()
            self._journal.checkpoint(self._journal.sequence, closing=not rotated)
        except OSError as error:
            logger.warning("journal kept for the next start: %s", error)
        self._journal.close()

    def _rotate(self) -> bool:
        """Start a new segment; return False if the disk is full."""
        try:
            self._journal.rotate()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        return True

    def _start(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._start, turns - 1)
        elif not self._closed:
            self._thread = threading.Thread(target=self._run_in_thread, name="relay-checkpoint")
            self._thread.start()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except OSError as error:
            logger.error("journal checkpoint failed, segments kept: %s", error)
        finally:
            self._running = False

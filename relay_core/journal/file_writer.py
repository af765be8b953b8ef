"""Make the files of journaled messages that have to rest.

1. A message gets its file 10 to 60 ms after it was journaled (`LINGER_SECS`, and a fifth of it), as soon as no other
   has come for 10 ms, unless it has ended by then: one that is handled at once never becomes a file. It rests in
   ``new/``, or in ``cur/`` if it is claimed. A round that makes a thousand files takes some 40 ms more.
2. Messages that wait for their file are bounded in memory. Beyond `MAX_BYTES` a publisher makes room first: the commit
   thread waits for the writer; with ``os``, where there is none, the publisher writes files itself.
3. A message that cannot be written stays pending, in memory and in the journal; consumers get it all the same. Its
   mailbox shows the problem, and writing is retried every `RETRY_SECS`.
4. `flush` returns when everything held before it is a file or has ended. A checkpoint, a rebuild of the index and a
   graceful stop begin with it. Any thread may write files; each file is made under one lock.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from relay_core.clock import Clock
from relay_core.journal.transaction import Move
from relay_core.limited_log import LimitedLog
from relay_core.storage.atomic_file import is_full
from relay_core.storage.maildir import Maildir

logger = logging.getLogger(__name__)

LINGER_SECS = 0.05
RETRY_SECS = 1.0
MAX_BYTES = 64 * 1024 * 1024
_ENTRY_BYTES = 1024
_REFUSALS = 8
"""How many refused messages a publisher skips before it gives up."""


class FileWriter:
    """Write the files of pending messages, in a thread."""

    def __init__(self, make_room: Callable[[], bool], clock: Clock, *, max_bytes: int = MAX_BYTES) -> None:
        self.make_room = make_room
        """Frees space on a full disk; returns False if there is none to free."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._log = LimitedLog(logger, clock)
        self._queue: deque[tuple[Maildir, str, int, float]] = deque()
        """Mailbox, message id, bytes, and when it was held; in the order of the journal."""
        self._refused: deque[tuple[Maildir, str, int, float]] = deque()
        self._retried_at = 0.0
        self._bytes = 0
        self._lock = threading.Lock()
        """Guards `_bytes` and the wake-up of the thread."""
        self._changed = threading.Condition(self._lock)
        self._is_asleep = False
        self._held = 0
        """How many messages were held."""
        self._writing = threading.Lock()
        """Held while one message is taken from a queue and written."""
        self._is_stopping = False
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="relay-files")
        self._thread.start()

    def close(self) -> None:
        """Write everything and stop the thread. Blocks.

        Raises:
            OSError: if a message could not be written; it is still in the journal.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()

    def hold(self, move: Move) -> None:
        """Take a message whose file is made later."""
        move.maildir.hold(move.message_id, move)
        size = move.size + _ENTRY_BYTES
        entry = move.maildir, move.message_id, size, self._clock.monotonic()
        with self._lock:  # on the event loop: taking the lock itself is faster than taking the condition
            self._queue.append(entry)
            self._held += 1
            self._bytes += size
            if self._is_asleep or self._bytes > self._max_bytes:
                self._is_asleep = False
                self._changed.notify_all()

    @property
    def is_full(self) -> bool:
        """Return True if the messages that wait for their file have reached the limit."""
        return self._bytes > self._max_bytes

    @property
    def is_idle(self) -> bool:
        """Return True if no message waits for its file or is being written."""
        return not self._bytes

    @property
    def waiting(self) -> int:
        """Return how many messages have no file yet; some may have ended."""
        return len(self._queue) + len(self._refused)

    @property
    def oldest_secs(self) -> float:
        """Return for how long the oldest of them has been waiting."""
        since = []
        for queue in (self._refused, self._queue):
            with suppress(IndexError):  # another thread may take the last one
                since.append(queue[0][3])
        return self._clock.monotonic() - min(since) if since else 0.0

    def wait_for_room(self) -> None:
        """Wait until the messages without a file are within their limit. Blocks.

        Raises:
            OSError: if the writer makes no progress because its files are refused.
        """
        with self._changed:
            while self.is_full and not self._is_stopping:
                before = self._bytes
                if not self._changed.wait(10 * RETRY_SECS) and self._bytes >= before:
                    raise OSError(errno.EAGAIN, "too many messages wait for their files, and none can be written")

    def make_some(self) -> None:
        """Write files until a quarter of the limit is free. Blocks.

        Raises:
            OSError: if the files are refused.
        """
        refusals = 0
        while self._bytes > self._max_bytes * 3 // 4:
            refusals += not self._write_next(self._queue or self._refused)
            if refusals == _REFUSALS:
                raise OSError(errno.EAGAIN, "too many messages wait for their files, and none can be written")

    def flush(self) -> None:
        """Write the files of all pending messages. Blocks.

        Raises:
            OSError: if one is refused; it stays pending.
        """
        self._try_all(self._refused)
        self._try_all(self._queue)
        with self._writing:  # also for the one that another thread is writing
            refused = [maildir.problem for maildir, message_id, *_ in self._refused if message_id in maildir.pending]
        if refused:
            raise OSError(errno.EIO, f"{len(refused)} messages exist only in the journal: {refused[0]}")

    def _work(self) -> None:
        began = 0.0
        """No message in the queue is older than this time."""
        while not self._is_stopping:
            if not self._queue:
                self._sleep()
                began = time.monotonic()
            count, began = self._linger(began + LINGER_SECS)
            now = self._clock.monotonic()
            if not count or now - self._retried_at >= RETRY_SECS:
                self._retried_at = now
                self._try_all(self._refused)
            for _ in range(count):
                self._write_next(self._queue)

    def _sleep(self) -> None:
        """Wait for a message, or until refused ones are to be retried."""
        with self._changed:
            if not self._queue and not self._is_stopping:
                self._is_asleep = True
                self._changed.wait(RETRY_SECS if self._refused else None)
                self._is_asleep = False

    def _linger(self, until: float) -> tuple[int, float]:
        """Wait while messages keep coming, but not beyond a time, nor for a full writer.

        Return how many to write, and since when the others were held: those of the last step may be handled soon.
        """
        with self._changed:
            held, count, since = 0, len(self._queue), time.monotonic()
            while self._held != held and (now := time.monotonic()) < until:
                held, count, since = self._held, len(self._queue), now
                if self._changed.wait_for(lambda: self._is_stopping or self.is_full, min(LINGER_SECS / 5, until - now)):
                    break
            return count, since

    def _try_all(self, queue: deque[tuple[Maildir, str, int, float]]) -> None:
        """Write every message that is in a queue now."""
        for _ in range(len(queue)):
            self._write_next(queue)

    def _write_next(self, queue: deque[tuple[Maildir, str, int, float]]) -> bool:
        """Write the oldest message of a queue; return False if there was none or it was refused."""
        with self._writing:
            try:
                entry = queue.popleft()
            except IndexError:
                return False
            maildir, message_id, size, _ = entry
            if message_id in maildir.pending and (error := self._write(maildir, message_id)) is not None:
                maildir.problem = f"files cannot be written: {error}"
                self._log.error((str(maildir.path), error.errno), "%s cannot be written yet: %s", message_id, error)
                self._refused.append(entry)
                return False
            if maildir.problem is not None and not any(refused[0] is maildir for refused in self._refused):
                maildir.problem = None
        with self._lock:
            if self._bytes > self._max_bytes:  # a publisher may be waiting for room
                self._changed.notify_all()
            self._bytes -= size
        return True

    def _write(self, maildir: Maildir, message_id: str) -> OSError | None:
        retried = False
        while True:
            try:
                maildir.write_pending(message_id)
            except FileNotFoundError as error:  # an operator has removed the directory
                if retried:
                    return error
                retried = True
                try:
                    maildir.create(sync=False)
                except OSError as refused:
                    return refused
            except OSError as error:
                if not is_full(error) or not self.make_room():
                    return error
            else:
                return None

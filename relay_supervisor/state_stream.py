"""The state stream: everyone who watches gets the whole state once, then what has changed, at most 5 times a second.

1. Nothing is done while nobody watches. While nothing has changed, only the time is sent, once a second: who hears
   nothing for some seconds knows that the picture stands still because nobody looks, not because nothing happens.
2. What a look costs does not depend on the traffic: it compares rows with those of the look before and sends those
   that differ. Looks are so far apart that they take at most a twentieth of the time, however many mailboxes there
   are, but never more than 2 seconds.
3. All watchers share one look. One that does not keep up misses updates and then gets the whole state again: what
   is kept for it is one mark.
4. The groups of dead letters come from the index, asked again only when a dead letter came or went, or the index
   was behind or built anew.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Self

from relay_core.clock import sleep
from relay_core.deadletters import DeadLetterGroup
from relay_core.live_state import ALIASES, SECTIONS, LiveThroughput
from relay_core.tasks import Tasks
from relay_supervisor.connection import Connection
from relay_supervisor.state_view import StateView, wire_row

logger = logging.getLogger(__name__)

INTERVAL_SECS = 0.2
_SHARE = 20
_LONGEST_SECS = 2.0
"""Between two looks, however long one takes."""
_HEARTBEAT_SECS = 1.0
PART_ROWS = 2000
"""Of one notification, so that it fits into a frame."""


class StateStream:
    """Look at the bus on behalf of all who watch."""

    def __init__(self, view: StateView) -> None:
        self._view = view
        self._bus = view.relay.bus
        self._tasks = Tasks()
        self._watchers: dict[str, Connection] = {}
        self._behind: set[str] = set()
        """Watchers that need the whole state."""
        self._running = False
        self._rows: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        """What was seen at the last look."""
        self._throughput: LiveThroughput | None = None
        self._problems: list[str] | None = None
        self._events = 0
        self._dead: list[DeadLetterGroup] = []
        self._dead_mark: tuple[int, ...] | None = None
        self._told_at = 0.0
        """When anything was sent to all, in the bus's monotonic time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()

    def watch(self, connection: Connection) -> str:
        """Send the state to a connection from now on; return what the stream is called."""
        watch_id = self._bus.new_id()
        self._watchers[watch_id] = connection
        self._behind.add(watch_id)
        connection.on_closed(lambda: self._leave(connection), key=self)
        if not self._running:
            self._running = True
            self._tasks.start(self._look_and_send(), name="state stream")
        return watch_id

    def unwatch(self, connection: Connection, watch_id: str) -> bool:
        """Send no more of it; False if the connection has no such stream."""
        if self._watchers.get(watch_id) is not connection:
            return False
        self._forget(watch_id)
        return True

    def _leave(self, connection: Connection) -> None:
        for watch_id in [id for id, watcher in self._watchers.items() if watcher is connection]:
            self._forget(watch_id)

    def _forget(self, watch_id: str) -> None:
        del self._watchers[watch_id]
        self._behind.discard(watch_id)

    async def _look_and_send(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._watchers:
                began = loop.time()
                try:
                    if (mark := self._view.dead_mark()) != self._dead_mark:
                        self._dead, self._dead_mark = await self._view.relay.dead_letter_groups(), mark
                        began = loop.time()
                    self._send(self._look())
                except Exception:
                    logger.exception("the state could not be told")
                    self._behind.update(self._watchers)  # nobody knows what they have missed
                await sleep(self._bus.clock, pause_after(loop.time() - began))
        finally:
            self._running = False

    def _send(self, update: dict[str, Any]) -> None:
        now = self._bus.clock.monotonic()
        parts: list[dict[str, Any]] = []
        if len(update) > 2 or now - self._told_at >= _HEARTBEAT_SECS:  # more than `full` and `at`, or high time
            parts = _in_parts(update)
            self._told_at = now
        whole: list[dict[str, Any]] | None = None
        for watch_id, connection in list(self._watchers.items()):
            if not connection.writable:
                self._behind.add(watch_id)
            elif watch_id in self._behind:
                whole = whole or _in_parts(self._whole(update["at"]))
                self._tell(connection, watch_id, whole)
                self._behind.discard(watch_id)
            else:
                self._tell(connection, watch_id, parts)

    @staticmethod
    def _tell(connection: Connection, watch_id: str, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            connection.notify("state", {"watchId": watch_id, **part})

    def _look(self) -> dict[str, Any]:
        """Return what has changed since the last look, in its wire form."""
        update: dict[str, Any] = {"full": False, "at": self._bus.clock.now_ms()}
        gone: dict[str, list[str]] = {}
        for name, rows in self._view.sections(self._dead).items():
            before, self._rows[name] = self._rows[name], rows
            if changed := {key: wire_row(row) for key, row in rows.items() if before.get(key) != row}:
                update[ALIASES[name]] = changed
            if left := [key for key in before if key not in rows]:
                gone[ALIASES[name]] = left
        if gone:
            update["gone"] = gone
        if (throughput := self._view.throughput()) != self._throughput:
            self._throughput = throughput
            update["throughput"] = throughput.to_wire()
        if (problems := self._view.problems()) != self._problems:
            self._problems = update["problems"] = problems
        noted = self._bus.events.noted
        if fresh := noted - self._events:
            self._events = noted
            update["events"] = self._view.events(fresh)
        return update

    def _whole(self, at: int) -> dict[str, Any]:
        """Return everything that was seen at the last look, in its wire form."""
        whole: dict[str, Any] = {"full": True, "at": at, "problems": self._problems}
        for name, rows in self._rows.items():
            whole[ALIASES[name]] = {key: wire_row(row) for key, row in rows.items()}
        if self._throughput is not None:
            whole["throughput"] = self._throughput.to_wire()
        whole["events"] = self._view.events(len(self._bus.events.recent))
        return whole


def pause_after(took: float) -> float:
    """Return how long to wait after a look that took so many seconds."""
    return min(max(INTERVAL_SECS, took * _SHARE), _LONGEST_SECS)


def _in_parts(update: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut an update with more rows than surely fit into a frame: whatever is no row comes with the first part."""
    part = {name: value for name, value in update.items() if name not in ALIASES.values()}
    parts = [part]
    room = PART_ROWS
    for name in ALIASES.values():
        rows = list(update.get(name, {}).items())
        while rows:
            if not room:
                part = {"full": False, "at": update["at"]}
                parts.append(part)
                room = PART_ROWS
            part[name] = dict(rows[:room])
            rows, room = rows[room:], room - len(part[name])
    return parts

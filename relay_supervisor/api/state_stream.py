"""The state stream: each watcher gets the whole state once, then the changes, at most 5 times a second.

1. Nothing is done without watchers. While nothing changes, only the time is sent, once a second: a client that
   receives nothing for some seconds knows that its state is stale.
2. The cost of a snapshot does not depend on the traffic: rows are compared with those of the previous snapshot, and
   those that differ are sent. The interval grows so that snapshots take at most a twentieth of the time, however many
   mailboxes there are, up to 2 seconds.
3. All watchers share one snapshot. A watcher that does not keep up misses updates and then gets the whole state again:
   the server keeps one flag for it.
4. The groups of dead letters come from the index, which is queried only when dead letters were added or removed, or
   the index was behind or rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Self

from relay_core.clock import sleep
from relay_core.messages.dead_letter import DeadLetterGroup
from relay_core.protocol.live_state import ALIASES, SECTIONS, LiveThroughput
from relay_core.tasks import Tasks
from relay_supervisor.api.state_snapshot import StateSnapshot
from relay_supervisor.server.connection import Connection

logger = logging.getLogger(__name__)

INTERVAL_SECS = 0.2
_SHARE = 20
_LONGEST_SECS = 2.0
"""The longest interval between two snapshots."""
_HEARTBEAT_SECS = 1.0
PART_ROWS = 2000
"""Rows in one notification, so that it fits into a frame."""


class StateStream:
    """Take snapshots and send the changes to all watchers."""

    def __init__(self, view: StateSnapshot) -> None:
        self._view = view
        self._relay = view.relay
        self._tasks = Tasks()
        self._watchers: dict[str, Connection] = {}
        self._behind: set[str] = set()
        """Watchers that need the whole state."""
        self._running = False
        self._rows: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        """The rows of the last snapshot."""
        self._throughput: LiveThroughput | None = None
        self._problems: list[str] | None = None
        self._events = 0
        self._dead: list[DeadLetterGroup] = []
        self._dead_mark: tuple[int, ...] | None = None
        self._sent_at = 0.0
        """When an update was last sent to all, in the bus's monotonic time."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    def watch(self, connection: Connection) -> str:
        """Start a stream to a connection; return its id."""
        watch_id = self._relay.new_id()
        self._watchers[watch_id] = connection
        self._behind.add(watch_id)
        connection.on_closed(lambda: self._leave(connection), key=self)
        if not self._running:
            self._running = True
            self._tasks.start(self._run(), name="state stream")
        return watch_id

    def unwatch(self, connection: Connection, watch_id: str) -> bool:
        """End a stream; return False if the connection has no such stream."""
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

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._watchers:
                began = loop.time()
                try:
                    if (mark := self._relay.dead_letters_version()) != self._dead_mark:
                        self._dead, self._dead_mark = await self._relay.dead_letter_groups(), mark
                        began = loop.time()
                    self._send(self._take_snapshot())
                except Exception:
                    logger.exception("the state could not be sent")
                    self._behind.update(self._watchers)  # what they have missed is unknown
                await sleep(self._relay.clock, pause_after(loop.time() - began))
        finally:
            self._running = False

    def _send(self, update: dict[str, Any]) -> None:
        now = self._relay.clock.monotonic()
        parts: list[dict[str, Any]] = []
        has_changes = len(update) > 2  # more than `full` and `at`
        if has_changes or now - self._sent_at >= _HEARTBEAT_SECS:
            parts = _in_parts(update)
            self._sent_at = now
        whole: list[dict[str, Any]] | None = None
        for watch_id, connection in list(self._watchers.items()):
            if not connection.writable:
                self._behind.add(watch_id)
            elif watch_id in self._behind:
                whole = whole or _in_parts(self._whole(update["at"]))
                self._notify(connection, watch_id, whole)
                self._behind.discard(watch_id)
            else:
                self._notify(connection, watch_id, parts)

    @staticmethod
    def _notify(connection: Connection, watch_id: str, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            connection.notify("state", {"watchId": watch_id, **part})

    def _take_snapshot(self) -> dict[str, Any]:
        """Return the changes since the last snapshot, in wire form."""
        update: dict[str, Any] = {"full": False, "at": self._relay.clock.now_ms()}
        gone: dict[str, list[str]] = {}
        for name, rows in self._view.sections(self._dead).items():
            before, self._rows[name] = self._rows[name], rows
            if changed := {key: row.to_wire() for key, row in rows.items() if before.get(key) != row}:
                update[ALIASES[name]] = changed
            if left := [key for key in before if key not in rows]:
                gone[ALIASES[name]] = left
        if gone:
            update["gone"] = gone
        if (throughput := self._relay.throughput()) != self._throughput:
            self._throughput = throughput
            update["throughput"] = throughput.to_wire()
        if (problems := self._view.problems()) != self._problems:
            self._problems = update["problems"] = problems
        noted = self._relay.events.noted
        if fresh := noted - self._events:
            self._events = noted
            update["events"] = self._view.events(fresh)
        return update

    def _whole(self, at: int) -> dict[str, Any]:
        """Return the whole last snapshot, in wire form."""
        whole: dict[str, Any] = {"full": True, "at": at, "problems": self._problems}
        for name, rows in self._rows.items():
            whole[ALIASES[name]] = {key: row.to_wire() for key, row in rows.items()}
        if self._throughput is not None:
            whole["throughput"] = self._throughput.to_wire()
        whole["events"] = self._view.events(len(self._relay.events.recent))
        return whole


def pause_after(took: float) -> float:
    """Return the pause after a snapshot that took so many seconds."""
    return min(max(INTERVAL_SECS, took * _SHARE), _LONGEST_SECS)


def _in_parts(update: dict[str, Any]) -> list[dict[str, Any]]:
    """Split an update with more rows than fit into a frame; all that is not a row goes into the first part."""
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

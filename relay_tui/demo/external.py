"""A webhook receiver that fails from time to time, the traffic to it, and the janitor.

The janitor keeps a few dozen dead letters of each kind and a few megabytes of the event log. It also runs each job
once, so that the screen of jobs is not empty.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

from relay_core.errors import RelayError
from relay_core.messages.dead_letter import DeadLetterFilter
from relay_tui.demo.bus_access import BusAccess, Workload
from relay_tui.demo.sample_texts import ALERTS, NEWS, SERVICES

LETTERS_MOST = 40
"""Above this number, the oldest dead letters of a kind are purged down to `LETTERS_KEPT`."""
LETTERS_KEPT = 25
SEGMENTS_KEPT = 6
JOBS = ("index", "expire", "purge", "unread", "retention")

_REQUEST_MOST = 64 * 1024


async def receive(bus: BusAccess, listener: socket.socket) -> None:
    """Respond to webhooks with 204, but with 500 at ``/pager`` while that is down."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0].strip()
                await reader.readexactly(int(length or 0))
            down = b" /pager " in head.split(b"\r\n")[0] and bus.is_active(every=60, duration=25)
            status = b"500 Internal Server Error" if down else b"204 No Content"
            writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
            return  # not HTTP
        finally:
            writer.close()

    async with await asyncio.start_server(answer, sock=listener, limit=_REQUEST_MOST) as server:
        await server.serve_forever()


async def hooks(bus: BusAccess) -> None:
    """Publish to the adapters."""
    while True:
        service = bus.random.choice(SERVICES)
        await bus.publish("relay.hook.status", {"content": f"{service} is up"}, sender="relay.agent.release")
        await bus.publish("relay.hook.pager", {"content": bus.random.choice(ALERTS)}, sender="relay.agent.watch")
        await bus.publish("relay.note.journal", {"content": bus.random.choice(NEWS)}, sender="relay.agent.watch")
        await bus.pause(0.8, 1.6)


async def janitor(bus: BusAccess) -> None:
    """Run the jobs once, then purge for ever."""
    for job in JOBS:
        with suppress(RelayError):
            await bus.client.run_job(job)
    while True:
        for group in await bus.client.dead_letter_groups():
            if group.count > LETTERS_MOST:
                kind = DeadLetterFilter(code=group.code, endpoint=group.endpoint_hash)
                page = await bus.client.dead_letter_page(filter=kind, limit=1000)  # newest first
                oldest = [letter.message_id for letter in page.dead_letters[LETTERS_KEPT:]]
                await bus.client.purge_dead_letters(ids=oldest, filter=kind)
        await asyncio.to_thread(sweep_events, bus.data_dir)
        await bus.pause(8.0, 12.0)


def sweep_events(data_dir: Path) -> None:
    """Remove all but the newest sealed segments."""
    sealed = sorted(data_dir.glob("events/date=*/[!_]*.jsonl"))
    for segment in sealed[:-SEGMENTS_KEPT]:
        segment.unlink(missing_ok=True)


WORKLOADS: dict[str, Workload] = {"hooks": hooks, "janitor": janitor}

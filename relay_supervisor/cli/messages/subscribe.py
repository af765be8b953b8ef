"""``relay subscribe``: messages as JSON lines, until interrupted.

1. A message is acknowledged after its line is written. If the write fails, the message becomes a dead letter.
2. SIGINT or SIGTERM: messages already received are printed and acknowledged, no more are requested, exit code 0. A
   second signal abandons a blocked write: its message becomes a dead letter.
3. If the supervisor goes away, the command waits for it.
4. With ``--queue`` the messages are shared with every subscriber of that queue. Messages received but not started are
   requeued at the end.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from types import FrameType
from typing import Annotated, Any

import typer

from relay_core.client.connection import ConnectionLost
from relay_core.client.streams import MessageStream, subscribe_params
from relay_core.errors import RelayError
from relay_core.messages.envelope import Envelope
from relay_supervisor.cli.arguments import complete_subject
from relay_supervisor.cli.command import Session, command, print_json
from relay_supervisor.cli.entry import ExitCode, discard_stdout
from relay_supervisor.cli.groups import new_command

app = new_command()

_DRAIN_SECS = 2.0


@command(
    app,
    examples=[
        "relay subscribe relay.agent.writer",
        "relay subscribe 'relay.agent.>' | jq -c .payload",
        "relay subscribe relay.agent.writer --limit 1",
        "relay subscribe 'relay.job.>' --queue workers --exec ./work.sh",
    ],
)
async def subscribe(
    session: Session,
    pattern: Annotated[
        str, typer.Argument(help="Subject or pattern.", metavar="PATTERN", autocompletion=complete_subject)
    ],
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many messages.")] = None,
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Share the messages among all subscribers of this queue."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--exec",
            "-x",
            metavar="COMMAND",
            help="Run this for each message, as JSON on stdin; exit code 0 acknowledges it.",
        ),
    ] = None,
) -> int:
    """Print and acknowledge each message as a JSON line, or run a command for it, until interrupted."""
    if run is not None:
        from relay_supervisor.cli.messages.subscribe_exec import run_for_each

        return await run_for_each(session, pattern, queue, limit, run)
    feed = Feed(session.client, subscribe_params(pattern, 1, queue))
    signals = _SignalHandler(feed)
    try:
        await feed
        session.note(f"listening to {pattern}; press Ctrl-C to stop")
        async for envelope in feed:
            signals.print(envelope)
            if limit is not None and feed.printed >= limit:
                await feed.close()
                break
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    except _WriteAbandoned:
        discard_stdout()
        feed.fail("interrupted before it was printed")
    except OSError as error:
        feed.fail(f"cannot be printed: {error.strerror}")
        raise
    finally:
        signals.restore()
    if signals.stopping:
        await _drain(feed)
    return ExitCode.OK


class Feed(MessageStream):
    """A stream that prints its messages and can be drained before it ends."""

    printed = 0

    def print(self, envelope: Envelope) -> None:
        """Print a message as a JSON line."""
        print_json(envelope.to_wire(), indent=False)
        self.printed += 1

    async def unsubscribe(self) -> None:
        """Unsubscribe; with a queue, also drop messages that are not started."""
        connection, id = self._connection, self._id
        if connection is None or id is None or connection.lost.done():
            return
        with suppress(ConnectionLost, RelayError):
            await connection.request(self.closing, {self.key: id})
        if self._starts:
            self._notes.clear()

    async def drain(self) -> None:
        """Print and acknowledge the messages that were sent before the unsubscription."""
        while self._notes or self._pending_start is not None:
            self.ack()
            note = await self._begin_message()
            if note is not None:
                self.print(Envelope.model_validate(note["envelope"]))
        self.ack()


async def _drain(feed: Feed) -> None:
    try:
        async with asyncio.timeout(_DRAIN_SECS):
            await feed.unsubscribe()
            await feed.drain()
    except TimeoutError:
        return
    except OSError as error:
        feed.fail(f"cannot be printed: {error.strerror}")


class _WriteAbandoned(Exception):
    """A second signal came during a write."""


class _SignalHandler:
    """Handle SIGINT and SIGTERM while messages are printed."""

    def __init__(self, feed: Feed) -> None:
        self.stopping = False
        self._feed = feed
        self._printing = False
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # Not the loop's handlers: they wait for the loop, which is blocked during a write.
        self._previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

    def print(self, envelope: Envelope) -> None:
        """Print a message; a signal during the write takes effect afterwards."""
        self._printing = True
        try:
            self._feed.print(envelope)
        finally:
            self._printing = False
        if self.stopping:
            raise asyncio.CancelledError

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.stopping and self._task is not None:
            self._task.uncancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_second, self.stopping = self.stopping, True
        if self._printing:
            if is_second:
                raise _WriteAbandoned
        elif self._task is not None and not is_second:
            self._loop.call_soon_threadsafe(self._task.cancel)

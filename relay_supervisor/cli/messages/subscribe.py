"""``relay subscribe``: messages as JSON lines, until interrupted.

1. A line is written out before its message is acknowledged. If it cannot be written, the message is failed: it is a
   dead letter then, not lost.
2. SIGINT or SIGTERM: what has been received is printed and acknowledged, nothing more is asked for, exit code 0. A
   second signal gives up a write that does not come to an end: its message is failed.
3. A supervisor that goes away is waited for.
4. With ``--queue`` the messages are shared with everyone who names the same queue. What has been received and not been
   begun goes back to the others at the end.
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

_LEAVE_SECS = 2.0


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
        str, typer.Argument(help="A subject or a pattern.", metavar="PATTERN", autocompletion=complete_subject)
    ],
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Leave after so many messages.")] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", metavar="NAME", help="Share the messages with all who name this queue, one each."
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--exec",
            "-x",
            metavar="COMMAND",
            help="Run this for each, with the JSON on stdin; exit code 0 acknowledges.",
        ),
    ] = None,
) -> int:
    """Print each message as a JSON line and acknowledge it, or run a command for it, until interrupted."""
    if run is not None:
        from relay_supervisor.cli.messages.subscribe_exec import run_for_each

        return await run_for_each(session, pattern, queue, limit, run)
    feed = Feed(session.client, subscribe_params(pattern, 1, queue))
    stopping = _Stopping(feed)
    try:
        await feed
        session.note(f"listening to {pattern}: Ctrl-C ends it")
        async for envelope in feed:
            stopping.print(envelope)
            if limit is not None and feed.printed >= limit:
                await feed.close()
                break
    except asyncio.CancelledError:
        if not stopping.asked:
            raise
    except _GivenUp:
        discard_stdout()
        feed.fail("interrupted before it was printed")
    except OSError as error:
        feed.fail(f"it could not be printed: {error.strerror}")
        raise
    finally:
        stopping.restore()
    if stopping.asked:
        await _take_leave(feed)
    return ExitCode.OK


class Feed(MessageStream):
    """The messages of a pattern, printed, with a way to leave that also prints what is on its way."""

    printed = 0

    def print(self, envelope: Envelope) -> None:
        """Write a message out."""
        print_json(envelope.to_wire(), indent=False)
        self.printed += 1

    async def leave(self) -> None:
        """Have nothing more sent; of a queue, nothing more begun."""
        link, id = self._connection, self._id
        if link is None or id is None or link.lost.done():
            return
        with suppress(ConnectionLost, RelayError):
            await link.request(self.closing, {self.key: id})
        if self._starts:
            self._notes.clear()

    async def drain(self) -> None:
        """Print and acknowledge what was sent before the supervisor knew that nothing more is wanted."""
        while self._notes or self._pending_start is not None:
            self.ack()
            note = await self._begin_message()
            if note is not None:
                self.print(Envelope.model_validate(note["envelope"]))
        self.ack()


async def _take_leave(feed: Feed) -> None:
    try:
        async with asyncio.timeout(_LEAVE_SECS):
            await feed.leave()
            await feed.drain()
    except TimeoutError:
        return
    except OSError as error:
        feed.fail(f"it could not be printed: {error.strerror}")


class _GivenUp(Exception):
    """A second signal came during a write."""


class _Stopping:
    """What signals do while messages are printed."""

    def __init__(self, feed: Feed) -> None:
        self.asked = False
        self._feed = feed
        self._printing = False
        self._task: asyncio.Task[Any] | None = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        # Not the loop's own handlers: those wait for the loop, which stands still during a write.
        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

    def print(self, envelope: Envelope) -> None:
        """Write a message out; a signal meanwhile takes effect afterwards."""
        self._printing = True
        try:
            self._feed.print(envelope)
        finally:
            self._printing = False
        if self.asked:
            raise asyncio.CancelledError

    def restore(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.asked and self._task is not None:
            self._task.uncancel()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if self._printing:
            if again:
                raise _GivenUp
        elif self._task is not None and not again:
            self._loop.call_soon_threadsafe(self._task.cancel)

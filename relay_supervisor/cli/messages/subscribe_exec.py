"""``relay subscribe --exec``: a command for each message, in the place of a line for each.

1. The command gets the message as one JSON line on stdin, and what scripts ask for in the environment:
   RELAY_MESSAGE_ID, RELAY_MESSAGE_FROM, RELAY_MESSAGE_SUBJECT, RELAY_REPLY_TO. What it prints goes where we print.
2. Exit code 0 acknowledges the message. Any other end makes a dead letter of it: the reason is how it ended, and the
   last line that it wrote to stderr.
3. One message at a time, begun with the supervisor's word alone (`start`): the handler timeout counts from there, and
   what has come and was not begun goes back in line when we leave.
4. SIGINT or SIGTERM: the command that runs is left to end, and nothing more is begun. A second signal kills it, with
   everything that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Self

import orjson

from relay_core.client.streams import MessageStream, subscribe_params
from relay_core.messages.envelope import Envelope
from relay_supervisor.cli.command import Session
from relay_supervisor.cli.entry import ExitCode
from relay_supervisor.cli.output import safe

_LAST_WORDS_SECS = 1.0
"""How long stderr is read on after the command's end: something that it left behind may hold it open."""
_MAX_REASON = 300
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_for_each(session: Session, pattern: str, queue: str | None, limit: int | None, command: str) -> int:
    """Run a command for each message of a pattern, until interrupted."""
    handler = _Handler(command)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler.stop)
    try:
        async with MessageStream(session.client, subscribe_params(pattern, 1, queue) | {"starts": True}) as messages:
            session.note(f"listening to {pattern}: Ctrl-C ends it")
            handled = 0
            async for envelope in messages:
                why = await handler.run(envelope)
                if why is None:
                    messages.ack()
                else:
                    messages.fail(why)
                    session.note(f"{envelope.id} is a dead letter: {safe(why)}")
                handled += 1
                if handler.stopping or handled == limit:
                    break
    except asyncio.CancelledError:
        if not handler.stopping:
            raise
        handler.task.uncancel()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        handler.kill()
    return ExitCode.OK


class _Handler:
    """The command, and the one process of it that runs."""

    def __init__(self, command: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.stopping = False
        self._command = command
        self._busy = False
        self._process: Process | None = None

    def stop(self) -> None:
        """Begin nothing more; asked again, end what runs."""
        if self.stopping:
            self.kill()
        elif not self._busy:
            self.task.cancel()
        self.stopping = True

    def kill(self) -> None:
        """End what runs, with everything that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def run(self, envelope: Envelope) -> str | None:
        """Run the command on a message; return why that failed, or None."""
        self._busy = True
        try:
            return await self._run(envelope)
        finally:
            self._busy = False
            self._process = None

    async def _run(self, envelope: Envelope) -> str | None:
        async with _LastWords() as last_words:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    "-c",
                    self._command,
                    stdin=PIPE,
                    stderr=last_words.end,
                    start_new_session=True,
                    env=_environ(envelope),
                )
            except OSError as error:
                return f"the command cannot be started: {error.strerror}"
            finally:
                os.close(last_words.end)
            assert process.stdin is not None
            listening = asyncio.gather(
                _hand_over(process.stdin, orjson.dumps(envelope.to_wire()) + b"\n"), last_words.listen()
            )
            code = await process.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_SECS):
                    await listening
        if code == 0:
            return None
        how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        return f"{how}: {last_words.line}"[:_MAX_REASON] if last_words.line else how


class _LastWords:
    """What a command writes to stderr, passed on, and the last line of it.

    It is a pipe of our own: asyncio takes a process for ended only when its pipes are, and something that the command
    has left behind may hold this one for ever.
    """

    def __init__(self) -> None:
        self.line = ""
        self._start, self.end = os.pipe()

    async def __aenter__(self) -> Self:
        self._stream = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._stream), os.fdopen(self._start, "rb", 0)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        self._transport.close()

    async def listen(self) -> None:
        """Pass on what is written, until nobody can write any more."""
        rest, stream = "", self._stream
        while data := await stream.read(65536):
            sys.stderr.buffer.write(data)
            sys.stderr.flush()
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            self.line = next((line.strip() for line in (rest, *reversed(lines)) if line.strip()), self.line)
            rest = rest[-_MAX_REASON:]


async def _hand_over(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Write a message to a command, which need not read it."""
    with suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    with suppress(ConnectionError):
        stream.close()
        await stream.wait_closed()


def _environ(envelope: Envelope) -> dict[str, str]:
    about = {
        "RELAY_MESSAGE_ID": envelope.id,
        "RELAY_MESSAGE_FROM": envelope.sender,
        "RELAY_MESSAGE_SUBJECT": envelope.subject,
        "RELAY_REPLY_TO": envelope.reply_to or envelope.sender,
    }
    return {**os.environ, **about}

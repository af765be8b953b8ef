"""``relay subscribe --exec``: run a command for each message instead of printing it.

1. The command gets the message as one JSON line on stdin, and RELAY_MESSAGE_ID, RELAY_MESSAGE_FROM,
   RELAY_MESSAGE_SUBJECT and RELAY_REPLY_TO in its environment. It inherits stdout.
2. Exit code 0 acknowledges the message. Any other outcome makes it a dead letter; the reason is the exit code or
   signal, and the last line on stderr.
3. Messages run one at a time, each after the supervisor has confirmed its `start`: the handler timeout counts from
   there, and messages that were not started are requeued when the command ends.
4. SIGINT or SIGTERM: the running command may finish, and no other is started. A second signal kills it and all its
   children.
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

_STDERR_SECS = 1.0
"""How long to read stderr after the command has ended: a child that it left behind may keep it open."""
_MAX_REASON = 300
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_for_each(session: Session, pattern: str, queue: str | None, limit: int | None, command: str) -> int:
    """Run a command for each message of a pattern, until interrupted; return the exit code."""
    handler = _Handler(command)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, handler.stop)
    try:
        async with MessageStream(session.client, subscribe_params(pattern, 1, queue) | {"starts": True}) as messages:
            session.note(f"listening to {pattern}; press Ctrl-C to stop")
            handled = 0
            async for envelope in messages:
                reason = await handler.run(envelope)
                if reason is None:
                    messages.ack()
                else:
                    messages.fail(reason)
                    session.note(f"{envelope.id} is a dead letter: {safe(reason)}")
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
    """The command and its running process."""

    def __init__(self, command: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.stopping = False
        self._command = command
        self._busy = False
        self._process: Process | None = None
        self._is_killed = False

    def stop(self) -> None:
        """Start no more commands; when called again, kill the running one."""
        if self.stopping:
            self.kill()
        elif not self._busy:
            self.task.cancel()
        self.stopping = True

    def kill(self) -> None:
        """Kill the running command and all its children, also one that is just being started."""
        self._is_killed = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def run(self, envelope: Envelope) -> str | None:
        """Run the command for a message; return why it failed, or None."""
        self._busy = True
        try:
            return await self._run(envelope)
        finally:
            self._busy = False
            self._process = None

    async def _run(self, envelope: Envelope) -> str | None:
        async with _Stderr() as stderr:
            try:
                self._process = process = await asyncio.create_subprocess_exec(
                    "/bin/sh",
                    "-c",
                    self._command,
                    stdin=PIPE,
                    stderr=stderr.write_end,
                    start_new_session=True,
                    env=_environ(envelope),
                )
            except OSError as error:
                return f"cannot start the command: {error.strerror}"
            finally:
                os.close(stderr.write_end)
            if self._is_killed:
                self.kill()
            assert process.stdin is not None
            streams = asyncio.gather(
                _write_stdin(process.stdin, orjson.dumps(envelope.to_wire()) + b"\n"), stderr.forward()
            )
            code = await process.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STDERR_SECS):
                    await streams
        if code == 0:
            return None
        outcome = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        return f"{outcome}: {stderr.last_line}"[:_MAX_REASON] if stderr.last_line else outcome


class _Stderr:
    """Forward a command's stderr and remember its last line.

    This is a separate pipe because asyncio considers a process ended only when its pipes are closed, and a child that
    the command left behind may keep this one open forever.
    """

    def __init__(self) -> None:
        self.last_line = ""
        self._read_end, self.write_end = os.pipe()

    async def __aenter__(self) -> Self:
        self._stream = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._stream), os.fdopen(self._read_end, "rb", 0)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        self._transport.close()

    async def forward(self) -> None:
        """Copy stderr until every writer has closed it."""
        rest, stream = "", self._stream
        while data := await stream.read(65536):
            sys.stderr.buffer.write(data)
            sys.stderr.flush()
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            written = (line.strip() for line in (rest, *reversed(lines)))
            self.last_line = next(filter(None, written), self.last_line)
            rest = rest[-_MAX_REASON:]


async def _write_stdin(stream: asyncio.StreamWriter, data: bytes) -> None:
    """Write a message to a command, which may not read it."""
    with suppress(ConnectionError):
        stream.write(data)
        await stream.drain()
    with suppress(ConnectionError):
        stream.close()
        await stream.wait_closed()


def _environ(envelope: Envelope) -> dict[str, str]:
    message = {
        "RELAY_MESSAGE_ID": envelope.id,
        "RELAY_MESSAGE_FROM": envelope.sender,
        "RELAY_MESSAGE_SUBJECT": envelope.subject,
        "RELAY_REPLY_TO": envelope.reply_to or envelope.sender,
    }
    return {**os.environ, **message}

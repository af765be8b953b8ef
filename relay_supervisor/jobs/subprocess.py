"""A command in a process of its own: bounded in time and in output, and ended with all that it has started.

1. The child leads a session and a process group of its own. Whatever ends the run (the child's own exit, the timeout
   or our being cancelled), what is left of the group gets SIGTERM, a grace, and SIGKILL. A grandchild escapes only by
   making itself a group of its own.
2. Its stdout and stderr are one pipe, read as it fills, so that a chatty child never blocks; the end of it is kept.
3. The run is over when the child has exited and its group is gone. The end of the pipe is not waited for, since a
   grandchild that has escaped may hold it open: what the child wrote before its exit is in the pipe by then.
4. The pipe is ours and not the transport's, because loops differ in whether `wait` waits for a transport's pipes.
5. Whoever wants to is told of each line as it comes. Lines that it takes are not kept. A line that is longer than
   `LINE_LIMIT`, or has no end when the child is gone, is output like any other and told to nobody.
6. Its stdin is a pipe into which nothing is ever written, and whose other end only we hold. A child that finds
   RELAY_PARENT_PIPE in its environment may wait for the end of it, in order to end itself when we have been killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from relay_core.tasks import Tasks

GRACE_SECS = 2.0
"""From SIGTERM to SIGKILL."""
OUTPUT_LIMIT = 64 * 1024
LINE_LIMIT = 4096
"""Longest line that anybody is told of; a write of so many bytes is not torn by others to the same pipe."""
PARENT_PIPE = "RELAY_PARENT_PIPE"

_POLL_SECS = 0.02
_PIPE_MAX = 1024 * 1024  # the most that an unprivileged process can make a pipe hold
_READ_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChildResult:
    """How a child has ended."""

    returncode: int
    """Negative if a signal ended it."""
    output: str
    """The end of what it, and what it started, have printed."""
    timed_out: bool


async def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    on_line: Callable[[str], bool] | None = None,
) -> ChildResult:
    """Run a command to its end, or kill it and all that it started when the timeout has passed or we are cancelled.

    `on_line` is told of each line that is printed, and returns whether it takes the line: then it is not kept.

    Raises:
        OSError: if it cannot be started.
    """
    output = _Output(output_limit, on_line)
    stdin, held = os.pipe()
    timed_out = False
    try:
        try:
            process = await _spawn(command, {**env, PARENT_PIPE: "1"}, stdin, output.write_end)
        finally:
            os.close(stdin)
            os.close(output.write_end)
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            await _end(process)
        returncode = await process.wait()
    finally:
        os.close(held)
        output.close()
    return ChildResult(returncode, output.text(), timed_out)


async def _spawn(command: Sequence[str], env: Mapping[str, str], stdin: int, output: int) -> Process:
    # In a task that is not cancelled with us: of a child that is only half started we would not know the group.
    starting = Tasks().start(_start(command, env, stdin, output), name="start child")
    assert starting is not None
    try:
        await asyncio.wait({starting})
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        if isinstance(process := starting.result(), Process):
            await _end(process)
        raise
    started: Process | OSError = starting.result()
    if isinstance(started, OSError):
        raise started
    return started


async def _start(command: Sequence[str], env: Mapping[str, str], stdin: int, output: int) -> Process | OSError:
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=output, stderr=STDOUT, env=env, start_new_session=True
        )
    except OSError as error:
        return error


async def _end(process: Process) -> None:
    """End what is left of a child's group: politely first, then by force, which comes at once if we are cancelled."""
    gone = not _signal_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_SECS):
            while not gone:
                # No event tells that a group is empty: its members are not all our children.
                await asyncio.sleep(_POLL_SECS)
                gone = not _signal_group(process.pid, 0)
    except TimeoutError:
        pass
    finally:
        if not gone:
            _signal_group(process.pid, signal.SIGKILL)
        await process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Signal every process of a group; return whether there is any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        return False
    return True


class _Output:
    """A pipe that is read as it fills, and the end of what came through it."""

    def __init__(self, limit: int, on_line: Callable[[str], bool] | None) -> None:
        self._limit = limit
        self._on_line = on_line
        self._begun = b""
        """The beginning of a line, while somebody may still be told of it."""
        self._overlong = False
        """Whether the line that is being read is output already."""
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._readable)

    def close(self) -> None:
        """Take what is in the pipe now, and stop reading."""
        self._loop.remove_reader(self._read_end)
        self._read(_PIPE_MAX)
        self._keep(self._begun)
        os.close(self._read_end)

    def text(self) -> str:
        """Return what was kept."""
        return bytes(self._kept[-self._limit :]).decode(errors="replace")

    def _readable(self) -> None:
        # One read a turn, so that a chatty child leaves the loop to others as well.
        if not self._read(_READ_SIZE):
            self._loop.remove_reader(self._read_end)

    def _read(self, size: int) -> bool:
        """Read once; return whether there may be more to come."""
        try:
            data = os.read(self._read_end, size)
        except BlockingIOError:
            return True
        if self._on_line is None:
            self._keep(data)
        else:
            self._tell(data, self._on_line)
        return bool(data)

    def _tell(self, data: bytes, on_line: Callable[[str], bool]) -> None:
        """Tell of the lines that are complete now, and keep those that nobody takes."""
        *lines, rest = (self._begun + data).split(b"\n")
        for line in lines:
            known = not self._overlong and len(line) <= LINE_LIMIT
            self._overlong = False
            if not (known and on_line(line.decode(errors="replace"))):
                self._keep(line + b"\n")
        if self._overlong or len(rest) > LINE_LIMIT:
            self._overlong = True
            self._keep(rest)
            rest = b""
        self._begun = rest

    def _keep(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

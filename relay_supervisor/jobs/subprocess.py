"""Run a command in a subprocess, with limits on its time and output, and end it with all of its children.

1. The child leads a new session and process group. However the run ends (exit, timeout or cancellation), the rest of
   the group gets SIGTERM and, after a grace period, SIGKILL. A grandchild escapes only by leaving the group.
2. Its stdout and stderr are one pipe, which is read as it fills, so that a child with much output never blocks. The end
   of the output is kept.
3. The run is over when the child has exited and its group is gone. It does not wait for the end of the pipe, since an
   escaped grandchild may hold it open: all that the child wrote before its exit is in the pipe by then.
4. The pipe is not the transport's, because event loops differ in whether `wait` waits for a transport's pipes.
5. `on_line` is called with each line. Lines that it accepts are not kept. A line that is longer than `LINE_LIMIT`, or
   incomplete when the child exits, is ordinary output.
6. Its stdin is a pipe without data, whose other end only this process holds. A child that finds RELAY_PARENT_PIPE in
   its environment may wait for the end of the pipe, to exit when this process has been killed.
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
"""The longest line for `on_line`: POSIX guarantees that writes of this size to a pipe are atomic."""
PARENT_PIPE = "RELAY_PARENT_PIPE"

_POLL_SECS = 0.02
_PIPE_MAX = 1024 * 1024  # the largest capacity of a pipe for unprivileged processes
_READ_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The outcome of a child."""

    returncode: int
    """Negative if a signal ended it."""
    output: str
    """The end of the output of its process group."""
    timed_out: bool


async def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    output_limit: int = OUTPUT_LIMIT,
    on_line: Callable[[str], bool] | None = None,
) -> ChildResult:
    """Run a command to its end; kill its process group on timeout or cancellation.

    `on_line` gets each line of output and returns True if the line shall not be kept.

    Raises:
        OSError: if the command cannot be started.
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
    # In a separate task, so that a cancellation cannot interrupt the start and lose the process.
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
    """End the rest of a child's group with SIGTERM, then SIGKILL; a cancellation skips the grace period."""
    gone = not _signal_group(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE_SECS):
            while not gone:
                # No event reports that a group is empty: some members are not our children.
                await asyncio.sleep(_POLL_SECS)
                gone = not _signal_group(process.pid, 0)
    except TimeoutError:
        pass
    finally:
        if not gone:
            _signal_group(process.pid, signal.SIGKILL)
        await process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Signal every process of a group; return False if there is none."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
        return False
    return True


class _Output:
    """A pipe that is read as it fills; keeps the end of the output."""

    def __init__(self, limit: int, on_line: Callable[[str], bool] | None) -> None:
        self._limit = limit
        self._on_line = on_line
        self._begun = b""
        """The beginning of an incomplete line."""
        self._overlong = False
        """Whether the beginning of the current line has been kept already."""
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._readable)

    def close(self) -> None:
        """Read the rest of the pipe and stop."""
        self._loop.remove_reader(self._read_end)
        self._read(_PIPE_MAX)
        self._keep(self._begun)
        os.close(self._read_end)

    def text(self) -> str:
        """Return the kept output."""
        return bytes(self._kept[-self._limit :]).decode(errors="replace")

    def _readable(self) -> None:
        # One read per turn of the loop, so that other tasks run in between.
        if not self._read(_READ_SIZE):
            self._loop.remove_reader(self._read_end)

    def _read(self, size: int) -> bool:
        """Read once; return False at the end of the pipe."""
        try:
            data = os.read(self._read_end, size)
        except BlockingIOError:
            return True
        if self._on_line is None:
            self._keep(data)
        else:
            self._split(data, self._on_line)
        return bool(data)

    def _split(self, data: bytes, on_line: Callable[[str], bool]) -> None:
        """Pass complete lines to `on_line`, and keep those that it does not accept."""
        *lines, rest = (self._begun + data).split(b"\n")
        for line in lines:
            is_whole = not self._overlong and len(line) <= LINE_LIMIT
            self._overlong = False
            if not (is_whole and on_line(line.decode(errors="replace"))):
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

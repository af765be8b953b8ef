"""A command in a process of its own: bounded in time and in output, and ended with all that it has started.

1. The child leads a session and a process group of its own. Whatever ends the run (the child's own exit, the timeout
   or our being cancelled), what is left of the group gets SIGTERM, a grace, and SIGKILL. A grandchild escapes only by
   making itself a group of its own.
2. Its stdout and stderr are one pipe, read as it fills, so that a chatty child never blocks; the end of it is kept.
3. The run is over when the child has exited and its group is gone. The end of the pipe is not waited for, since a
   grandchild that has escaped may hold it open: what the child wrote before its exit is in the pipe by then.
4. The pipe is ours and not the transport's, because loops differ in whether `wait` waits for a transport's pipes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay_core.tasks import Tasks

GRACE_SECS = 2.0
"""From SIGTERM to SIGKILL."""
OUTPUT_LIMIT = 64 * 1024

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
    command: Sequence[str], *, env: Mapping[str, str], timeout: float, output_limit: int = OUTPUT_LIMIT
) -> ChildResult:
    """Run a command to its end, or kill it and all that it started when the timeout has passed or we are cancelled.

    Raises:
        OSError: if it cannot be started.
    """
    output = _Output(output_limit)
    timed_out = False
    try:
        try:
            process = await _spawn(command, env, output.write_end)
        finally:
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
        output.close()
    return ChildResult(returncode, output.text(), timed_out)


async def _spawn(command: Sequence[str], env: Mapping[str, str], output: int) -> Process:
    # In a task that is not cancelled with us: of a child that is only half started we would not know the group.
    starting = Tasks().start(_start(command, env, output), name="start child")
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


async def _start(command: Sequence[str], env: Mapping[str, str], output: int) -> Process | OSError:
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=STDOUT, env=env, start_new_session=True
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

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._loop = asyncio.get_running_loop()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._readable)

    def close(self) -> None:
        """Take what is in the pipe now, and stop reading."""
        self._loop.remove_reader(self._read_end)
        self._read(_PIPE_MAX)
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
        self._kept += data
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]
        return bool(data)

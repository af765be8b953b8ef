"""``relay publish --batch``: publish JSON lines in frames of many messages, with several frames in flight.

1. Lines are published in the order in which they are read, but frames overlap: a slow message does not block the next.
2. An invalid line ends the batch: the lines before it are published and counted, and the error has its line number.
   A message that the bus refuses does not end the batch.
3. Lines are sent as they arrive: a slow writer on stdin need not fill a frame first.
4. With ``--dedupe ID`` line n has the id ``ID:n``, so an interrupted batch can be repeated as a whole.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relay_core.errors import AccessDenied, ProtocolError, RelayError
from relay_core.protocol.methods import METHODS, parse_params
from relay_supervisor.cli.arguments import parse_json
from relay_supervisor.cli.entry import ExitCode, Failed, UsageError
from relay_supervisor.cli.messages.publish import refusal
from relay_supervisor.cli.output import StatusLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay_supervisor.cli.command import Session

FRAME_MESSAGES = 64
FRAME_BYTES = 1024 * 1024
IN_FLIGHT = 8
_READ = 256 * 1024
_SHOWN_ERRORS = 100


@dataclass
class Tally:
    """The outcome of a batch."""

    published: int = 0
    refused: int = 0
    failed: int = 0
    bad_line: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The first errors: line, error, code."""

    def add_error(self, line: int, error: str, code: str) -> None:
        """Keep the error of a line, if there is room."""
        if len(self.errors) < _SHOWN_ERRORS:
            self.errors.append({"line": line, "error": error, "code": code})

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        if self.bad_line or self.failed:
            return ExitCode.ERROR
        return ExitCode.REFUSED if self.refused else ExitCode.OK


async def publish_batch(session: Session, source: str, defaults: dict[str, Any], dedupe: str | None) -> int:
    """Publish every line of a file, or of stdin (``-``); return the exit code."""
    tally = Tally()
    room = asyncio.Semaphore(IN_FLIGHT)
    with _opened(source) as (fd, size):
        progress = _Progress(tally, size)
        try:
            async with asyncio.TaskGroup() as group:
                async for frame in _frames(fd, defaults, dedupe, tally, progress):
                    await room.acquire()
                    group.create_task(_send(session, frame, tally, room))
        finally:
            progress.line.clear()
    tally.errors.sort(key=lambda error: error["line"])
    document = {
        "published": tally.published,
        "refused": tally.refused,
        "failed": tally.failed,
        "errors": tally.errors,
    }
    session.show(
        document,
        lambda: [f"{tally.published:,} published, {tally.refused:,} refused, {tally.failed:,} failed"],
    )
    for error in tally.errors[:10]:
        session.note(f"relay: line {error['line']}: {error['error']}")
    if (more := tally.refused + tally.failed - 10) > 0:
        session.note(f"relay: and {more:,} more errors")
    return tally.exit_code


async def _send(
    session: Session, frame: list[tuple[int, dict[str, Any]]], tally: Tally, room: asyncio.Semaphore
) -> None:
    try:
        outcomes = await session.client.publish_many(message for _, message in frame)
    finally:
        room.release()
    for (line, _), outcome in zip(frame, outcomes, strict=True):
        if isinstance(outcome, AccessDenied):
            tally.refused += 1
            tally.add_error(line, outcome.message, outcome.code)
        elif isinstance(outcome, RelayError):
            tally.failed += 1
            tally.add_error(line, outcome.message, outcome.code)
        elif not outcome.delivered_to:
            tally.refused += 1
            reason = outcome.rejected[0].reason if outcome.rejected else "no_match"
            tally.add_error(line, refusal(outcome), reason)
        else:
            tally.published += 1


async def _frames(
    fd: int, defaults: dict[str, Any], dedupe: str | None, tally: Tally, progress: _Progress
) -> AsyncIterator[list[tuple[int, dict[str, Any]]]]:
    """Yield frames of messages, each message with its line number."""
    frame: list[tuple[int, dict[str, Any]]] = []
    filled = line = 0
    async for chunk in _chunks(fd):
        progress.read(sum(map(len, chunk)) + len(chunk))
        for text in chunk:
            line += 1
            if not text.strip():
                continue
            try:
                message = _message(text, defaults, f"{dedupe}:{line}" if dedupe else None)
            except (UsageError, ProtocolError) as error:
                tally.bad_line = True
                tally.failed += 1
                tally.add_error(line, str(error), "bad_line")
                if frame:
                    yield frame
                return
            if frame and (len(frame) == FRAME_MESSAGES or filled + len(text) > FRAME_BYTES):
                yield frame
                frame, filled = [], 0
            frame.append((line, message))
            filled += len(text)
        if frame:
            yield frame
            frame, filled = [], 0


def _message(text: bytes, defaults: dict[str, Any], dedupe: str | None) -> dict[str, Any]:
    found = parse_json(text, "the line")
    if not isinstance(found, dict):
        raise UsageError("the line is not a JSON object")
    message = {key: value for key, value in defaults.items() if value is not None} | found
    if dedupe is not None:
        message.setdefault("dedupeId", dedupe)
    for key in ("subject", "payload", "from"):
        if key not in message:
            hint = " (or give --from for all lines)" if key == "from" else ""
            raise UsageError(f"the line has no {key!r}{hint}")
    # An invalid message would fail the whole frame.
    parse_params(METHODS["publish"], message)
    return message


async def _chunks(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a file descriptor, as many at a time as have arrived."""
    rest = b""
    while data := await _read(fd):
        *lines, rest = (rest + data).split(b"\n")
        yield lines
    if rest:
        yield [rest]


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _wake, ready)
    except PermissionError:  # a regular file is always ready
        await asyncio.sleep(0)
        return os.read(fd, _READ)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return os.read(fd, _READ)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@contextmanager
def _opened(source: str) -> Iterator[tuple[int, int | None]]:
    """Open a source; yield its file descriptor and its size, if known."""
    if source == "-":
        yield sys.stdin.fileno(), None
        return
    try:
        with open(source, "rb", buffering=0) as file:
            yield file.fileno(), os.fstat(file.fileno()).st_size or None
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise Failed(f"cannot read {source}: {error.strerror}") from None


class _Progress:
    """A progress bar on stderr."""

    def __init__(self, tally: Tally, size: int | None) -> None:
        self.line = StatusLine()
        self._tally = tally
        self._size = size
        self._read = 0

    def read(self, count: int) -> None:
        """Advance by a number of bytes of the source."""
        self._read += count
        done = f"{self._tally.published + self._tally.refused + self._tally.failed:,} messages"
        if self._size:
            share = min(self._read / self._size, 1.0)
            done = f"[{'#' * int(share * 30):<30}] {share:4.0%}  {done}"
        self.line.draw(done)

"""A real pseudo-terminal with an emulator behind it: what an operator would see, and every byte that made it.

Rules:

1. The program gets the terminal as its controlling one, so that a change of size reaches it.
2. Every byte is kept, with the time it arrived. The emulator (pyte) is fed only when the screen is read, so
   that a measurement does not pay for it.
3. There are no sleeps: `until` checks again whenever bytes have arrived or the program has ended.
4. Textual asks two questions when it starts. The one about synchronised output is answered, as most terminals do.
5. On leaving, the program's whole process group is gone.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Self

import pyte

from relay_core.tasks import Tasks
from tests.kit import ROOT
from tests.kit.waiting import PATIENCE_SECS

SIZE = (120, 36)
ENTER, TAB, UP, DOWN, PAGE_DOWN, END = "\r", "\t", "\x1b[A", "\x1b[B", "\x1b[6~", "\x1b[F"
ESC = "\x1b[27u"
"""As terminals with kitty's protocol write it: unlike a bare escape, it cannot run together with the next key."""

_PIECE = 32 * 1024
_ASKS_FOR_SYNC = b"\x1b[?2026$p"
_SYNC_IS_KNOWN = b"\x1b[?2026;2$y"
# A session leader that opens a terminal gets it as its controlling one; $0 is the terminal.
_ON_TERMINAL = 'exec "$@" <>"$0" >&0 2>&0'


class Terminal:
    """One program on one terminal."""

    def __init__(
        self, command: Sequence[str], size: tuple[int, int] = SIZE, env: Mapping[str, str] | None = None
    ) -> None:
        self.raw = bytearray()
        self.arrivals: list[tuple[float, int]] = []
        """When bytes came (`perf_counter`), and how many there were then."""
        self.started = 0.0
        self._command = command
        self._env = _environment(env or {})
        self._emulator = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._emulator)
        self._fed = 0
        self._answered = False
        self._news = asyncio.Event()
        self._tasks = Tasks()
        self._master, self._slave = os.openpty()
        self._set_size(size)
        os.set_blocking(self._master, False)
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._master, self._read)
        self.started = perf_counter()
        self.process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _ON_TERMINAL,
            os.ttyname(self._slave),
            *self._command,
            env=self._env,
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tasks.start(self._wait_for_end(), name="wait for the program")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        await self._tasks.close(grace=PATIENCE_SECS)
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)
        os.close(self._slave)

    # What it shows

    def screen(self) -> list[str]:
        """Return the lines that are on the screen now."""
        self._feed()
        return self._emulator.display

    def text(self) -> str:
        """Return the screen as one text."""
        return "\n".join(line.rstrip() for line in self.screen())

    @property
    def cursor(self) -> tuple[int, int]:
        """Return the column and the row of the cursor, from 0."""
        self._feed()
        return self._emulator.cursor.x, self._emulator.cursor.y

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def until(self, condition: str | Callable[[], object]) -> None:
        """Return once a text is on the screen, or a condition holds; fail if the program ends before."""
        seen = (lambda: condition in self.text()) if isinstance(condition, str) else condition
        await self._until(seen, f"{condition!r} has not come", looks=True)

    async def until_raw(self, wanted: bytes, since: int = 0) -> None:
        """Return once these bytes have come, without the cost of a look at the screen."""
        await self._until(lambda: self.raw.find(wanted, since) >= 0, f"{wanted!r} has not come")

    async def bytes_after(self, since: int) -> float:
        """Return when the first byte after so many came."""
        await self._until(lambda: len(self.raw) > since, "no byte has come")
        return next(when for when, count in self.arrivals if count > since)

    async def exit_code(self) -> int:
        """Return the program's exit code once it has ended and all its output is here."""
        async with asyncio.timeout(PATIENCE_SECS):
            code = await self.process.wait()
        self._read()
        return code

    # What is done to it

    def send(self, keys: str) -> int:
        """Type keys; return how many bytes had come before."""
        before = len(self.raw)
        os.write(self._master, keys.encode())
        return before

    def resize(self, columns: int, lines: int) -> None:
        """Change the size, as a window manager would."""
        self._feed()
        self._emulator.resize(lines, columns)
        self._set_size((columns, lines))

    def _set_size(self, size: tuple[int, int]) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def _read(self) -> None:
        came = False
        while True:
            try:
                part = os.read(self._master, 65536)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                break
            self.raw += part
            came = True
        if came:
            self.arrivals.append((perf_counter(), len(self.raw)))
            if not self._answered and _ASKS_FOR_SYNC in self.raw:
                self._answered = True
                os.write(self._master, _SYNC_IS_KNOWN)
            self._news.set()

    def _feed(self, most: int | None = None) -> None:
        part = bytes(self.raw[self._fed : None if most is None else self._fed + most])
        self._stream.feed(part.replace(b"\x1b[<u", b""))  # pyte takes kitty's "pop keyboard mode" for text
        self._fed += len(part)

    async def _catch_up(self) -> None:
        """Feed the emulator piece by piece: a megabyte takes it a second, which would hold the loop."""
        while self._fed < len(self.raw):
            self._feed(_PIECE)
            await asyncio.sleep(0)

    async def _until(self, holds: Callable[[], object], otherwise: str, *, looks: bool = False) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                while True:
                    if looks:
                        await self._catch_up()
                    self._news.clear()
                    if holds():
                        return
                    if not self.alive:
                        self._read()
                        if holds():
                            return
                        raise AssertionError(f"{otherwise}, and the program has ended:\n{self.text()}")
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{otherwise}:\n{self.text()}") from None

    async def _wait_for_end(self) -> None:
        await self.process.wait()
        self._news.set()


def _environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would change how the program looks or what it talks to."""
    foreign = ("RELAY_", "TEXTUAL", "TERM", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES", "CLICOLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8", **chosen}

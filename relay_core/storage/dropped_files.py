"""Watch for files that other processes drop into mailboxes.

The watch must not report our own writes, which would cost a wake-up per publish; the event mask prevents that. Our
deliveries enter ``new/`` by link(2), which is IN_CREATE; our claims leave it by rename, which is IN_MOVED_FROM. Other
programs deliver by renaming into place, which is IN_MOVED_TO. So a watch for IN_MOVED_TO alone sees exactly their
files, and the kernel queues nothing for ours. watchdog is not used here: its masks for moves always include
IN_MOVED_FROM, and each of its watches starts a thread.

1. A drop is reported once by its name, without listing the directory.
2. When the kernel's queue overflows, names were lost: `on_overflow` asks the owner to list everything.
3. A directory that cannot be watched (no inotify on this system, the user's limit of watches is reached, or it was
   removed and may come back) is polled: listed in a thread once a second, and every name in it reported, our own
   included. Each poll first tries to watch it again.
4. A callback that raises is logged and affects no other drop.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

IN_MOVED_TO = 0x00000080
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000

POLL_SECS = 1.0
WATCH_LIMITS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Limits of the user or the machine, not faults of the directory."""

_HEADER = struct.Struct("iIII")
_log = logging.getLogger(__name__)


class DropWatch:
    """Report files that other processes rename into directories; each directory has a key."""

    def __init__(
        self,
        on_drop: Callable[[str, str], None],
        on_overflow: Callable[[], None],
        *,
        poll_secs: float = POLL_SECS,
    ) -> None:
        self._on_drop = on_drop
        self._on_overflow = on_overflow
        self._poll_secs = poll_secs
        self._inotify: _Inotify | None = None
        self._watched: dict[int, tuple[str, Path]] = {}
        self._descriptors: dict[str, int] = {}
        self._polled: dict[str, Path] = {}
        self._has_polled = asyncio.Event()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            group = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(group.create_task(self._poll(), name="relay-drop-poll").cancel)
            try:
                self._inotify = _Inotify()
            except OSError as error:
                _log.warning("mailboxes are polled for dropped files, which uses more CPU: %s", error)
            else:
                stack.callback(self._inotify.close)
                loop = asyncio.get_running_loop()
                loop.add_reader(self._inotify.descriptor, self._read, self._inotify)
                stack.callback(loop.remove_reader, self._inotify.descriptor)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The error is not passed on: the task group would wrap it in an exception group.
        await self._stack.aclose()
        self._inotify = None

    @property
    def polled(self) -> list[str]:
        """Return the keys of the directories that are polled because they cannot be watched."""
        return list(self._polled)

    def add(self, key: str, path: Path) -> None:
        """Watch a directory under a key, instead of the one it had before.

        Raises:
            OSError: if the path is not a readable directory.
            ValueError: if the directory is watched under another key.
        """
        self.remove(key)
        if not self._try_watch(key, path):
            self._poll_for(key, path)

    def remove(self, key: str) -> None:
        """Stop watching a directory; an unknown key is ignored."""
        self._polled.pop(key, None)
        descriptor = self._descriptors.pop(key, None)
        if descriptor is not None and self._inotify is not None:
            del self._watched[descriptor]
            self._inotify.remove(descriptor)

    def _try_watch(self, key: str, path: Path) -> bool:
        if self._inotify is None:
            return False
        try:
            descriptor = self._inotify.add(path)
        except OSError as error:
            if error.errno in WATCH_LIMITS:
                return False
            raise
        if descriptor in self._watched:
            raise ValueError(f"{path} is already watched as {self._watched[descriptor][0]!r}")
        self._watched[descriptor] = (key, path)
        self._descriptors[key] = descriptor
        return True

    def _poll_for(self, key: str, path: Path) -> None:
        if not self._polled:
            _log.warning("%s cannot be watched and is polled; raise fs.inotify.max_user_watches if you can", path)
        self._polled[key] = path
        self._has_polled.set()

    def _read(self, inotify: _Inotify) -> None:
        for descriptor, mask, name in inotify.read():
            if mask & IN_Q_OVERFLOW:
                self._report(self._on_overflow)
            elif mask & IN_IGNORED:
                # After our own `remove` it is no longer in `_watched`; otherwise the directory was removed.
                if descriptor in self._watched:
                    key, path = self._watched.pop(descriptor)
                    del self._descriptors[key]
                    self._poll_for(key, path)
            elif descriptor in self._watched:
                self._report(self._on_drop, self._watched[descriptor][0], name)

    async def _poll(self) -> None:
        while True:
            await self._has_polled.wait()
            await asyncio.sleep(self._poll_secs)
            polled = dict(self._polled)
            # Watched before it is listed: in the other order a drop in between would be missed.
            self._watch_again(polled)
            for key, name in await asyncio.to_thread(_list_all, polled):
                if key in self._polled or key in self._descriptors:
                    self._report(self._on_drop, key, name)
            if not self._polled:
                self._has_polled.clear()

    def _watch_again(self, polled: dict[str, Path]) -> None:
        for key, path in polled.items():
            try:
                if not self._try_watch(key, path):
                    return
            except (OSError, ValueError):
                continue
            del self._polled[key]

    def _report(self, callback: Callable[..., None], *arguments: str) -> None:
        try:
            callback(*arguments)
        except Exception:
            _log.exception("cannot report a dropped file: %s", "/".join(arguments))


def _list_all(directories: dict[str, Path]) -> list[tuple[str, str]]:
    names = []
    for key, path in directories.items():
        try:
            names += [(key, name) for name in os.listdir(path)]
        except OSError:
            continue  # it may be back at the next poll
    return names


class _Inotify:
    """The kernel's event queue.

    Raises:
        OSError: if this system has no inotify, or the user's limit is reached.
    """

    def __init__(self) -> None:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self._add: Any = libc.inotify_add_watch
        self._add.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        self._remove: Any = libc.inotify_rm_watch
        self.descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _last_error("inotify_init1")

    def add(self, path: Path) -> int:
        descriptor: int = self._add(self.descriptor, os.fsencode(path), IN_MOVED_TO | IN_ONLYDIR)
        if descriptor < 0:
            raise _last_error(str(path))
        return descriptor

    def remove(self, descriptor: int) -> None:
        # It fails only if the directory, and with it the watch, no longer exists.
        self._remove(self.descriptor, descriptor)

    def read(self) -> Iterator[tuple[int, int, str]]:
        try:
            data = os.read(self.descriptor, 65_536)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            descriptor, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            yield descriptor, mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length

    def close(self) -> None:
        os.close(self.descriptor)


def _last_error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)

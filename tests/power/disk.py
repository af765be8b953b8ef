"""A disk with a volatile write cache that records its requests.

The disk is a loop device over a file that this process serves through FUSE, so every request of the block layer comes
here. A write is complete once it is answered, and durable once a flush that follows it is answered.

1. One thread answers one request at a time: the log is the order in which the disk saw them.
2. A mark is a request too. Whatever happened in a process before it made the mark precedes the mark in the log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

MIB = 1024 * 1024
_REQUEST = struct.Struct("<IIQQIIIHH")
_NO_ANSWER = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_CLONE_NEWNS, _MS_PRIVATE_ALL = 0x20000, 0x4000 | 1 << 18
_DIRECT_IO = 1
"""The kernel must not cache the file: every write is to reach us."""


class Write(NamedTuple):
    """Bytes that came into the disk's cache."""

    offset: int
    data: bytes


class Flush(NamedTuple):
    """The writes before it are durable."""


class Mark(NamedTuple):
    """A fact that a process has stated with `mark`."""

    text: str


Entry: TypeAlias = Write | Flush | Mark


def mark(file: str, text: str) -> None:
    """State a fact in the log of the disk that is served as `file`."""
    os.setxattr(file, "user.mark", text.encode())


def own_mounts() -> None:
    """Let this process mount where no other sees it; its mounts end with it.

    A process that happened to copy our mounts would keep a file system in use that we have unmounted.
    """
    _system("unshare", _CLONE_NEWNS)
    _system("mount", None, b"/", None, _MS_PRIVATE_ALL, None)


def _system(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


class Disk:
    """The file of a loop device, served by a thread. Needs root."""

    def __init__(self, file: Path, content: bytes) -> None:
        self.log: list[Entry] = []
        self.file = file
        self._content = bytearray(content)
        self._answers: dict[int, Callable[[memoryview], bytes]] = {
            3: self._getattr,
            14: lambda _: struct.pack("<QII", 0, _DIRECT_IO, 0),  # OPEN
            15: self._read,
            16: self._write,
            18: lambda _: b"",  # RELEASE
            20: self._fsync,
            21: self._setxattr,
            25: lambda _: b"",  # FLUSH: a descriptor is closed
            26: self._init,
        }
        file.touch()
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=100600,user_id=0,group_id=0"
        try:
            _system("mount", b"relay-disk", bytes(file), b"fuse", 0, options.encode())
        except OSError:
            os.close(self._fuse)
            raise
        self._thread = threading.Thread(target=self._serve, name="disk", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the disk; its log stays."""
        subprocess.run(["umount", self.file], check=True, timeout=60)
        self._thread.join()
        os.close(self._fuse)

    def _serve(self) -> None:
        while True:
            try:
                request = memoryview(os.read(self._fuse, MIB + 4096))
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno == errno.ENOENT:  # the caller was killed meanwhile
                    continue
                raise
            _, opcode, unique, *_ = _REQUEST.unpack_from(request)
            if opcode in _NO_ANSWER:
                continue
            answer = self._answers.get(opcode)
            body = answer(request[_REQUEST.size :]) if answer is not None else b""
            code = 0 if answer is not None else -errno.ENOSYS
            try:
                os.write(self._fuse, struct.pack("<IiQ", 16 + len(body), code, unique) + body)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise

    def _init(self, body: memoryview) -> bytes:
        _, _, readahead, _ = struct.unpack_from("<IIII", body)
        flags = _BIG_WRITES | _MAX_PAGES
        return struct.pack("<IIIIHHIIHH32x", 7, 31, readahead, flags, 16, 12, MIB, 1, MIB // 4096, 0)

    def _getattr(self, _: memoryview) -> bytes:
        size = len(self._content)
        valid_secs, inode, links, mode = 3600, 1, 1, 0o100600
        return struct.pack("<Q8x3Q36xII12xI4x", valid_secs, inode, size, size // 512, mode, links, 4096)

    def _read(self, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self._content[offset : offset + size])

    def _write(self, body: memoryview) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data = bytes(body[40 : 40 + size])
        self._content[offset : offset + size] = data
        self.log.append(Write(offset, data))
        return struct.pack("<I4x", size)

    def _fsync(self, _: memoryview) -> bytes:
        self.log.append(Flush())
        return b""

    def _setxattr(self, body: memoryview) -> bytes:
        size, _ = struct.unpack_from("<II", body)
        self.log.append(Mark(bytes(body[len(body) - size :]).decode()))
        return b""

"""Where a round's data directory lies: a plain directory, or a small ext4 file system that can be filled and cut off.

The file system has blocks of 1 KiB, smaller than a page: there a byte written to each page of a file allocates less
than the page, and a write through a mapping can still meet a full disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from relay_core.storage.atomic_file import fsync_directory

SIZE = 64 * 1024 * 1024
FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)


class Volume:
    """A directory to write to."""

    can_fill = False
    can_lose_power = False

    def __init__(self, directory: Path) -> None:
        self.root = directory / "volume"
        self.root.mkdir(mode=0o700)

    def fill(self) -> None:
        """Leave no byte free."""
        raise NotImplementedError

    def free(self) -> None:
        """Give the space back."""

    def cut_power(self) -> None:
        """Lose everything that is not on the disk; every further write fails."""
        raise NotImplementedError

    def restore_power(self) -> None:
        """Mount what was on the disk."""
        raise NotImplementedError

    def remove(self) -> None:
        """Leave nothing mounted."""


class Ext4Volume(Volume):
    """A loop device. Needs root and mkfs.ext4."""

    can_fill = True
    can_lose_power = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._image = directory / "volume.img"
        self._ballast = self.root / "ballast"
        with self._image.open("wb") as image:
            image.truncate(SIZE)
        _run("mkfs.ext4", "-q", "-F", "-b", "1024", "-N", "65536", str(self._image))
        self._mount()

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 20, 1 << 14, 1):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def free(self) -> None:
        """Give the space back, so that a power cut does not take it again."""
        self._ballast.unlink(missing_ok=True)
        fsync_directory(self.root)

    def cut_power(self) -> None:
        """Shut the file system down without writing its log back."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount a copy of the image: another mount namespace may still hold the dead file system."""
        _run("umount", str(self.root))
        copy = self._image.with_suffix(".copy")
        _run("cp", "--sparse=always", str(self._image), str(copy))
        copy.rename(self._image)
        self._mount()

    def remove(self) -> None:
        """Unmount it, and remove the loop device with it."""
        if os.path.ismount(self.root):
            with suppress(subprocess.CalledProcessError):
                _run("umount", "-l", str(self.root))

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.root))
        self.root.chmod(0o700)


def make_volume(directory: Path) -> Volume:
    """Return an ext4 volume where one can be mounted, else a plain directory."""
    if os.geteuid() == 0 and shutil.which("mkfs.ext4"):
        try:
            return Ext4Volume(directory)
        except (OSError, subprocess.SubprocessError):
            shutil.rmtree(directory / "volume", ignore_errors=True)
    return Volume(directory)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)

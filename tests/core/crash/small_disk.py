"""A small disk that a test can fill: a tmpfs, or ext4 with blocks of 1 KiB, where a page of memory is four blocks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from relay_core.messages.envelope import Envelope, decode_envelope

Kind = Literal["tmpfs", "ext4-1k"]


class Disk:
    """A small file system, and a file that takes up what is left of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data_dir = root / "relay"
        self._ballast = root / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        """Leave no byte free, or as many as given."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (65536, 1024, 1):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))
            os.fsync(ballast.fileno())
            if leave:
                ballast.truncate(max(0, ballast.tell() - leave))

    def take_names(self) -> None:
        """Leave no inode free."""
        with suppress(OSError):
            for number in range(100_000):
                (self.root / f"name{number}").touch()

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink(missing_ok=True)
        for path in self.root.glob("name*"):
            path.unlink()

    def as_killed(self) -> Path:
        """Return a copy, on another disk, of what a kill at this moment would leave of an idle bus."""
        return Path(shutil.copytree(self.data_dir, self.root.parent / "killed"))

    def files(self, state: str) -> list[Path]:
        """Return the files of all mailboxes in a state."""
        return sorted(self.data_dir.glob(f"mailboxes/*/{state}/*"))

    def stored(self) -> list[Envelope]:
        """Return what is in new/; fails if any file there is torn."""
        return [decode_envelope(path.read_bytes()) for path in self.files("new")]


@contextmanager
def mounted(kind: Kind, directory: Path, *, megabytes: int = 4) -> Iterator[Disk]:
    """Mount a disk below a directory; the test is skipped where that is not possible."""
    root = directory / "disk"
    root.mkdir(mode=0o700)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("to mount a disk needs root and the program mount")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes=3000,mode=0700", "tmpfs", str(root)]
    if kind == "ext4-1k":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("there is no mkfs.ext4")
        image = directory / "disk.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "1024", "-O", "^has_journal", str(image)]
        subprocess.run(make, check=True, capture_output=True, timeout=60)
        mount = ["mount", "-o", "loop", str(image), str(root)]
    tried = subprocess.run(mount, capture_output=True, text=True, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"this machine mounts no {kind}: {tried.stderr.strip()}")
    try:
        root.chmod(0o700)
        yield Disk(root)
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True, timeout=60)

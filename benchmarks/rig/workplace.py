"""The directory of a run, optionally on a loop-mounted ext4 with a journal, removed at the end."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

DEFAULT = Path(".benchmarks")
_IMAGE_BYTES = 16 << 30
"""The upper bound of a sparse image."""


@contextmanager
def workplace(parent: Path | None, *, loop_ext4: bool) -> Iterator[Path]:
    """Make a directory below `parent`, and remove it at the end.

    Raises:
        SystemExit: if a loop mount is requested and not possible.
    """
    if loop_ext4 and os.geteuid() != 0:
        raise SystemExit("--loop-ext4 mounts a file system: run it as root")
    parent = parent or DEFAULT
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()
    try:
        with _loop_mounted(directory) if loop_ext4 else nullcontext(directory) as place:
            with suppress(FileNotFoundError):  # other file systems, and machines without chattr, go without
                subprocess.run(["chattr", "+T", place], check=False, stderr=subprocess.DEVNULL)
            yield place
    finally:
        shutil.rmtree(directory)
        if parent == DEFAULT:
            with suppress(OSError):
                parent.rmdir()


def file_system(path: Path) -> str:
    """Return the kind of file system that a directory is on."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [mount for mount in mounts if path.is_relative_to(mount[1])]
    device, _, kind, *_ = max(holding, key=lambda mount: len(mount[1]))
    journal = Path(f"/proc/fs/jbd2/{Path(device).name}-8").exists()
    return f"{kind} with{'' if journal else 'out'} a journal" if kind == "ext4" else kind


@contextmanager
def _loop_mounted(directory: Path) -> Iterator[Path]:
    image, mounted = directory / "ext4.img", directory / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(_IMAGE_BYTES)
    # The tables are written now: the kernel would otherwise do it during the measurements.
    options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    _call("mkfs.ext4", "-q", "-F", "-i", "16384", "-O", "has_journal", "-E", options, image)
    _call("mount", "-o", "loop", image, mounted)
    try:
        yield mounted
    finally:
        _call("umount", mounted)


def _call(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip()}")

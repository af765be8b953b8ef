"""`python -m tests.power.shutdown_race [CUTS]`: ext4's shutdown ioctl lets a sync succeed that it overtakes.

No code of Relay's. A process makes one file after another, each as a journal begins a segment: create it, sync the
directory, write zeros ahead, then write and sync three lines. After each sync it counts the line. Meanwhile the file
system is shut down. A line that was counted before the shutdown began must be there; one counted later may be lost.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.power.disk import own_mounts
from tests.soak.volume import Ext4Volume

LINES = 3
COUNTED = (10, 60)
"""How many lines are counted before the shutdown."""


def write(root: Path, counter: mmap.mmap) -> None:
    """Write and count lines until the disk is gone."""
    directory, file = os.open(root, os.O_RDONLY), -1
    for line in range(10_000):
        if line % LINES == 0:
            file = os.open(root / str(line // LINES), os.O_CREAT | os.O_RDWR | os.O_EXCL)
            os.fsync(directory)
            os.pwrite(file, bytes(65536), 0)
        os.pwrite(file, b"%8d" % line, line % LINES * 8)
        os.fdatasync(file)
        counter[:8] = (line + 1).to_bytes(8, "little")


def is_there(root: Path, line: int) -> bool:
    """Return True if a line is on the disk."""
    with suppress(FileNotFoundError):
        return (root / str(line // LINES)).read_bytes()[line % LINES * 8 :][:8] == b"%8d" % line
    return False


def cut(counter: mmap.mmap) -> Counter[str]:
    """Shut one file system down; return how many lines were counted and lost, by when they were counted."""
    counter[:8] = bytes(8)
    with tempfile.TemporaryDirectory(prefix="relay-race-") as directory:
        volume = Ext4Volume(Path(directory))
        pid = os.fork()
        if pid == 0:
            with suppress(OSError):
                write(volume.root, counter)
            os._exit(0)
        wanted = random.randint(*COUNTED)
        while int.from_bytes(counter[:8], "little") < wanted:
            os.sched_yield()
        for _ in range(random.randrange(5000)):  # the shutdown may begin anywhere between two counts
            os.sched_yield()
        before = int.from_bytes(counter[:8], "little")
        volume.cut_power()
        os.waitpid(pid, 0)
        after = int.from_bytes(counter[:8], "little")
        volume.restore_power()
        lost = [line for line in range(after) if not is_there(volume.root, line)]
        volume.remove()
    early = sum(line < before for line in lost)
    first = sum(line % LINES == 0 for line in lost)
    return Counter(
        {"cuts": 1, "lost, counted before": early, "lost, counted later": len(lost) - early, "of a new file": first}
    )


def main() -> None:
    """Make as many cuts as were asked for."""
    own_mounts()
    counter = mmap.mmap(-1, mmap.PAGESIZE)
    total: Counter[str] = Counter()
    for _ in range(int(sys.argv[1]) if sys.argv[1:] else 100):
        total.update(cut(counter))
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in total.items()) + "\n")


if __name__ == "__main__":
    main()

"""The real supervisor on a wall clock that jumps: `python -m tests.soak.clocked_supervisor OFFSET_FILE ARGUMENT...`.

The file holds how far the clock is off, in seconds. It is read at every look at the clock, as libfaketime does.
"""

from __future__ import annotations

import os
import struct
import sys
import time


def jump_with(path: str) -> None:
    """Make this process's wall clock follow the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    time_ns = time.time_ns

    def offset() -> int:
        seconds: int = struct.unpack("q", os.pread(descriptor, 8, 0))[0]
        return seconds * 1_000_000_000

    time.time_ns = lambda: time_ns() + offset()
    time.time = lambda: time.time_ns() / 1e9  # noqa: TID251 - replaced, not used


if __name__ == "__main__":
    jump_with(sys.argv.pop(1))
    from relay_supervisor.main import main

    main()

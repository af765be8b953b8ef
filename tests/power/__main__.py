"""`python3 -m tests power`: cut the power at many points of recorded runs, and look for what was acknowledged.

python3 -m tests power --cuts 200
python3 -m tests power --without fdatasync    the losses that this sync prevents
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import get_args

from tests.power.check import stated
from tests.power.disk import own_mounts
from tests.power.publisher import Sync
from tests.power.rig import Rig, State

CUTS_PER_RUN = 25
RUNS_PER_DISK = 3
"""The next run begins with what a cut of the one before has left, until the disk is nearly full."""


def main() -> None:
    """Make as many cuts as were asked for; exit with 1 if any lost a message."""
    parser = argparse.ArgumentParser(prog="python3 -m tests power", description="Power cuts at recorded points.")
    parser.add_argument("--cuts", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what the runs are drawn from (default: %(default)s)")
    parser.add_argument("--without", choices=get_args(Sync), help="leave a sync out: the losses must show")
    options = parser.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("mkfs.ext4") is None:
        sys.exit("this needs root, /dev/fuse and mkfs.ext4")
    own_mounts()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="relay-power-") as directory:
        state = None
        while total["cuts"] < options.cuts:
            rig = Rig(Path(directory), f"{options.seed} {total['runs']}", options.without)
            if state is None or total["runs"] % RUNS_PER_DISK == 0:
                state = rig.blank()
            state, counts = cut_run(rig, state, min(CUTS_PER_RUN, options.cuts - total["cuts"]))
            total.update(counts)
            total["runs"] += 1
    say(f"total: {describe(total)}")
    sys.exit(f"{total['cuts with losses']} cuts lost acknowledged messages" if total["cuts with losses"] else None)


def cut_run(rig: Rig, state: State, cuts: int) -> tuple[State, Counter[str]]:
    """Record one run and cut its power; return what its last cut left, and the figures."""
    started = time.monotonic()
    log = rig.record(state)
    kinds = Counter(type(entry).__name__ for entry in log)
    counts = Counter(
        acknowledged=len(stated(log, "ack")),
        segments=len(stated(log, "created")),
        writes=kinds["Write"],
        flushes=kinds["Flush"],
    )
    for cut in rig.cut(state, log, cuts):
        state = cut.state
        acknowledged = len(stated(cut.state.history, "ack"))
        counts.update({"cuts": 1, "acknowledgements checked": acknowledged, "cuts with losses": bool(cut.lost)})
        if cut.lost:
            say(f"  cut at {cut.point}: {acknowledged} acknowledged, {len(cut.lost)} lost, first {min(cut.lost)}")
    say(f"{describe(counts)} ({time.monotonic() - started:.0f} s)")
    return state, counts


def describe(counts: Counter[str]) -> str:
    """Return figures as text."""
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()

"""``python -m benchmarks compare [names ...]``: tables on stdout (or JSON lines), narration on stderr."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.compare.goals import goal_table, goals
from benchmarks.compare.programme import CLASSES, CONTESTANTS, entry
from benchmarks.compare.results import results
from benchmarks.compare.runner import run
from benchmarks.compare.table import table
from benchmarks.compare.worker import RATE
from benchmarks.harness import Bench, positive, say
from benchmarks.rig.workplace import file_system, workplace


def main(arguments: list[str]) -> None:
    """Compare the installed contestants, in both classes."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, _end)
    try:
        _compare(options)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _compare(options: argparse.Namespace) -> None:
    rounds = options.rounds or (2 if options.quick else 5)
    messages = options.messages or (100 if options.quick else 500)
    names = [name for name in CONTESTANTS if not options.names or name in options.names]
    missing = {name: why for name in names if (why := entry(name).missing())}
    left_out = [f"Left out: {entry(name).title} is not installed ({why})." for name, why in missing.items()]
    there = [name for name in names if name not in missing]
    with workplace(options.dir, loop_ext4=options.loop_ext4) as root:
        machine = f"{os.cpu_count()} × {_processor()}, {file_system(root)}, Linux {platform.release()}"
        about = [
            f"{datetime.now(UTC):%Y-%m-%d}, {machine}, Python {platform.python_version()}.",
            f"{rounds} rounds of {messages} messages of 1 KB: medians, and the lowest and highest in brackets.",
            f"Latency at {RATE} messages a second. The memory of a library is its whole Python process.",
            "; ".join(f"{entry(name).title}: {entry(name).version()}" for name in there) + ".",
            *left_out,
        ]
        print(*about, sep="\n", end="\n\n", file=sys.stderr if options.json else sys.stdout, flush=True)
        every = []
        for durability in CLASSES:
            able = [name for name in there if durability not in entry(name).out_of_class]
            found = results(durability, run(able, durability, root, rounds, messages, say))
            if options.json:
                print(*(json.dumps(result.line()) for result in found), sep="\n", flush=True)
            else:
                print(table(durability, there, found), flush=True)
            every += found
        # It stores nothing beforehand and needs no endpoints.
        bench = Bench(root, rounds, messages, stored=0, endpoints=0) if "relay" in there else None
        if lines := list(goals(every, bench)):
            print(*map(json.dumps, lines) if options.json else [goal_table(lines)], sep="\n", flush=True)
        say("cleaning up")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare", description="Compare Relay with alternatives."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CONTESTANTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 100: a smoke test")
    parser.add_argument("--rounds", type=positive, help="rounds of each measurement (default: 5)")
    parser.add_argument("--messages", type=positive, help="messages of each measurement (default: 500)")
    parser.add_argument("--dir", type=Path, help="where to write (default: .benchmarks, in the current directory)")
    parser.add_argument("--loop-ext4", action="store_true", help="use a loop-mounted ext4 with a journal (as root)")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of tables")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in CONTESTANTS]:
        parser.error(f"no contestant {', '.join(unknown)}: choose from {', '.join(CONTESTANTS)}")
    return options


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _end(number: int, frame: FrameType | None) -> None:
    """Exit as after Ctrl-C: processes are ended, files are removed."""
    raise SystemExit(128 + number)

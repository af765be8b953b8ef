"""`python3 -m tests soak`: rounds of traffic and faults until the time is over.

python3 -m tests soak --minutes 10
python3 -m tests soak --seed 7 --round 3 --durability os    the very round that failed
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak.rig import Durability, Outcome, Rig

SHOWN = 20


def main() -> None:
    """Run the rounds that were asked for; exit with 1 if any broke a rule."""
    parser = argparse.ArgumentParser(prog="python3 -m tests soak", description="Traffic and faults, then the rules.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to go on (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="what the rounds are drawn from (default: %(default)s)")
    parser.add_argument("--round", type=int, help="run this round alone")
    parser.add_argument("--cycles", type=int, default=15, help="faults in a round (default: %(default)s)")
    parser.add_argument("--durability", choices=["fsync", "os"], help="one alone; without it, in turn")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    total: Counter[str] = Counter()
    failed = 0
    number = options.round or 1
    while True:
        durability: Durability = options.durability or ("fsync" if number % 2 else "os")
        outcome = run_round(options.seed, number, options.cycles, durability)
        total.update(outcome.counts)
        total.update(rounds=1, faults=outcome.faults.total(), power_cuts=outcome.faults["cut power"])
        failed += bool(outcome.violations)
        number += 1
        if options.round is not None or time.monotonic() > deadline:
            break
    say(", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in total.items()))
    sys.exit(f"{failed} of {total['rounds']} rounds broke a rule" if failed else None)


def run_round(seed: int, number: int, cycles: int, durability: Durability) -> Outcome:
    """Run one round, and say what came of it."""
    directory = Path(tempfile.mkdtemp(prefix="relay-soak-"))
    try:
        rig = Rig(directory, f"{seed} {number}", durability)
        outcome = asyncio.run(rig.run(cycles))
    except BaseException:
        say(f"round {number} ended early; its log: {directory / 'supervisor.log'}")
        raise
    counts = ", ".join(f"{count:,} {what}" for what, count in outcome.counts.items())
    faults = ", ".join(f"{name} {count}" for name, count in outcome.faults.most_common())
    say(f"round {number} ({durability}): {counts}; {faults}: {'FAILED' if outcome.violations else 'ok'}")
    if outcome.violations:
        for violation in outcome.violations[:SHOWN]:
            say(f"  {violation}")
        if len(outcome.violations) > SHOWN:
            say(f"  and {len(outcome.violations) - SHOWN} more")
        again = f"--seed {seed} --round {number} --cycles {cycles} --durability {durability}"
        say(f"  again: python3 -m tests soak {again}\n  kept: {directory}")
    else:
        shutil.rmtree(directory)
    return outcome


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    main()

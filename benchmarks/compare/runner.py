"""The rounds: A B C, A B C, so that a noisy machine hits all alike.

1. All contestants of a class are started, then one is measured at a time while the others wait.
2. A round measures one task with each of them, in the same order. Ratios are made within a round, from neighbours in
   time; the value is the median of the rounds.
3. Before each measurement the file system is synced, so that nobody pays for what another has left to write back.
4. Workers lead process groups of their own: Ctrl-C reaches the runner alone, which ends them. If it is killed, the
   kernel interrupts them, and they end their servers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

from benchmarks.compare.contestant import Durability, Task
from benchmarks.compare.programme import ROUNDS, entry
from benchmarks.rig.servers import tied
from relay_core.journal.journal import sync_file_system

ROOT = Path(__file__).resolve().parent.parent.parent
_END_SECS = 30.0

Rounds = dict[str, dict[str, list[float]]]
"""Figures by contestant and metric, one for each round."""


class Worker:
    """A contestant in another process."""

    def __init__(self, name: str, process: subprocess.Popen[str], asks: IO[str], answers: IO[str]) -> None:
        self.name = name
        self._process = process
        self._asks = asks
        self._answers = answers

    def ask(self, task: Task, count: int) -> dict[str, float]:
        """Have a task measured, and return the figures.

        Raises:
            SystemExit: if the worker has ended; it has said why.
        """
        with suppress(BrokenPipeError):
            print(json.dumps({"task": task, "count": count}), file=self._asks, flush=True)
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early, with {self._process.wait()}: its own words are above")
        figures: dict[str, float] = json.loads(line)
        return figures


@contextmanager
def worker(name: str, root: Path, durability: Durability) -> Iterator[Worker]:
    """Run a worker in a fresh directory."""
    directory = root / token_hex(8)
    directory.mkdir(mode=0o700)
    command = [sys.executable, "-m", "benchmarks.compare.worker", name, str(directory), durability]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, process_group=0, preexec_fn=tied(signal.SIGINT)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    finished = False
    try:
        yield Worker(name, process, process.stdin, process.stdout)
        finished = True
    finally:
        if not finished:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=_END_SECS)  # closes its input, at whose end it stops
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(
    names: list[str], durability: Durability, root: Path, rounds: int, messages: int, say: Callable[[str], None]
) -> Rounds:
    """Measure every task with every contestant of a class."""
    figures: Rounds = {name: defaultdict(list) for name in names}

    with ExitStack() as stack:
        workers = [stack.enter_context(worker(name, root, durability)) for name in names]

        def able(task: Task) -> list[Worker]:
            return [one for one in workers if task not in entry(one.name).cannot]

        for one in able("memory"):
            figures[one.name]["memory_idle"] = list(one.ask("memory", 0).values())
        for task in ROUNDS:
            for number in range(rounds):
                say(f"{durability}: {task}, round {number + 1} of {rounds}")
                for one in able(task):
                    sync_file_system(root)
                    for metric, value in one.ask(task, messages).items():
                        figures[one.name][metric].append(value)
        for one in able("memory"):
            figures[one.name]["memory_after"] = list(one.ask("memory", 0).values())
    return figures

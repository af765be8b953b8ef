"""The rounds are interleaved, A B C, A B C, so that a noisy machine affects all contestants alike.

1. All contestants of a class are started, then measured one at a time while the others wait.
2. A round measures one task with each of them, in the same order. Ratios are computed within a round, between
   measurements close in time; the value is the median of the rounds.
3. The file system is synced before each measurement, so that no contestant pays for another's pending writes.
4. Workers lead their own process groups: Ctrl-C reaches only the runner, which ends them. If the runner is killed, the
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
from benchmarks.rig.servers import ROOT, tied
from relay_core.journal.journal import sync_file_system

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
        """Measure a task, and return the figures.

        Raises:
            SystemExit: if the worker has ended; its error is on stderr.
        """
        with suppress(BrokenPipeError):
            print(json.dumps({"task": task, "count": count}), file=self._asks, flush=True)
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early, with {self._process.wait()}: its error is above")
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
            process.communicate(timeout=_END_SECS)  # closes its input, which makes it stop
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
            return [worker for worker in workers if task not in entry(worker.name).cannot]

        for idle in able("memory"):
            figures[idle.name]["memory_idle"] = list(idle.ask("memory", 0).values())
        for task in ROUNDS:
            for number in range(rounds):
                say(f"{durability}: {task}, round {number + 1} of {rounds}")
                for measured in able(task):
                    sync_file_system(root)
                    for metric, value in measured.ask(task, messages).items():
                        figures[measured.name][metric].append(value)
        for used in able("memory"):
            figures[used.name]["memory_after"] = list(used.ask("memory", 0).values())
    return figures

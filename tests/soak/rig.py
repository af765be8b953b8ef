"""One round: a supervisor, its clients, the faults, and the end that the checker looks at."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from relay_core.storage.atomic_file import fsync_directory
from tests.soak.checker import Limits, Remains, check, read_remains
from tests.soak.clients import (
    ALL,
    CONSUMED,
    FAN,
    HOPS,
    METERED,
    METERED_SENDER,
    ORDERED,
    POOL,
    PUSH,
    Client,
    Consumer,
    Greedy,
    Operator,
    Publisher,
    Puller,
    Starter,
)
from tests.soak.history import History
from tests.soak.nemesis import FAULTS
from tests.soak.volume import Volume, make_volume
from tests.soak.wire import Lost, Refused, Wire

ROOT = Path(__file__).resolve().parents[2]
READY_SECS = 60.0
DRAIN_SECS = 90.0
LIMITS = Limits(mailbox=300, hops=5, rates={METERED_SENDER: 10}, ordered=ORDERED)
DAY_MS = 86_400_000

Durability = Literal["fsync", "os"]


def configuration(durability: Durability) -> dict[str, Any]:
    """Return the config.json of a round."""
    return {
        "durability": durability,
        "reliability": {
            "rateLimit": {"maxPerWindow": 10_000_000, "perSenderOverrides": LIMITS.rates},
            "backpressure": {"maxMailboxSize": LIMITS.mailbox},
            "circuitBreaker": {"failureThreshold": 20, "cooldownMs": 1000},
        },
        "dispatch": {"handlerTimeoutMs": 2000},
        "budget": {"ttlMs": 30 * DAY_MS, "maxHops": LIMITS.hops},
    }


@dataclass
class Outcome:
    """What a round came to."""

    violations: list[str]
    counts: dict[str, int]
    faults: Counter[str]


class SupervisorDied(Exception):
    """The supervisor ended without having been told to."""


class Rig:
    """A round under way. `nemesis.py` uses its verbs."""

    def __init__(self, directory: Path, seed: str, durability: Durability) -> None:
        self.chance = random.Random(f"{seed} nemesis")
        self.durability: Durability = durability
        self.history = History()
        self.volume: Volume = make_volume(directory)
        self.data_dir = self.volume.root / "data"
        self.log = directory / "supervisor.log"
        self._sockets = Path(tempfile.mkdtemp(prefix="relay-soak-"))
        self.socket = self._sockets / "relay.sock"
        self._offset = directory / "clock-offset"
        self._process: asyncio.subprocess.Process | None = None
        self.filled_at: float = -math.inf
        """When the disk was last full: the closed segments of the journal have given way then."""
        self.clients = self._make_clients(seed)
        self.jump_clock_to(0)

    def _make_clients(self, seed: str) -> list[Client]:
        def made(kind: Callable[..., Client], name: str, **more: Any) -> Client:
            return kind(name, self.socket, self.history, seed, **more)

        return [
            *(made(Publisher, f"p{number}") for number in range(3)),
            made(Greedy, "greedy"),
            made(Starter, "starter"),
            *(made(Consumer, f"on-{mailbox}", mailbox=mailbox) for mailbox in (*PUSH, *FAN, METERED, *HOPS)),
            *(made(Consumer, f"pool-{n}", mailbox=POOL, queue="workers", starts=n == 0) for n in range(2)),
            made(Puller, "puller"),
            made(Operator, "operator"),
        ]

    async def run(self, cycles: int) -> Outcome:
        """Run the round; it always ends with the supervisor stopped and nothing left mounted."""
        faults: Counter[str] = Counter()
        remains: list[Remains] = []
        died_of: list[str] = []
        try:
            await asyncio.to_thread(self._configure)
            await self.start()
            await self._register()
            async with asyncio.TaskGroup() as group:
                tasks = {client: group.create_task(client.run()) for client in self.clients}
                try:
                    await self._strike(cycles, faults)
                    await self._drain(tasks)
                finally:
                    for task in tasks.values():
                        task.cancel()
            await self.stop()
            remains = await asyncio.to_thread(read_remains, self.data_dir)
        except* SupervisorDied as died:
            died_of = [str(error) for error in died.exceptions]
        finally:
            await self.kill()
            self.volume.remove()
            shutil.rmtree(self._sockets, ignore_errors=True)
        violations = died_of or check(self.history, remains, LIMITS)
        return Outcome(violations, self.history.counts(), faults)

    def _configure(self) -> None:
        """Write config.json, in a way that a power cut does not undo."""
        self.data_dir.mkdir(mode=0o700)
        with (self.data_dir / "config.json").open("w") as config:
            json.dump(configuration(self.durability), config)
            config.flush()
            os.fsync(config.fileno())
        for directory in (self.data_dir, self.data_dir.parent):
            fsync_directory(directory)

    async def _strike(self, cycles: int, faults: Counter[str]) -> None:
        for _ in range(cycles):
            await asyncio.sleep(self.chance.uniform(0.1, 1.0))
            fault = self.chance.choice([fault for fault in FAULTS if fault.possible(self)])
            faults[fault.name] += 1
            await fault.strike(self)

    async def _register(self) -> None:
        wire = await Wire.connect(self.socket)
        for subject in ALL:
            await wire.call("endpoints.register", subject=subject)
        wire.cut()

    async def _drain(self, tasks: dict[Client, asyncio.Task[None]]) -> None:
        """Let the publishers finish and the consumers empty their mailboxes."""
        for client in self.clients:
            client.calm = True
            if isinstance(client, Puller):
                client.cut()  # what it has forgotten without a lease is its own until it disconnects
        working = [
            task for client, task in tasks.items() if isinstance(client, Publisher | Greedy | Starter | Operator)
        ]
        _, late = await asyncio.wait(working, timeout=DRAIN_SECS)
        if late:
            self.history.violations.append(f"{len(late)} clients were not answered within {DRAIN_SECS:.0f} s")
        deadline = time.monotonic() + DRAIN_SECS
        busy = ["the supervisor did not answer"]
        while busy and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            with suppress(OSError, Lost, Refused):
                wire = await Wire.connect(self.socket)
                boxes = (await wire.call("mailboxes.list"))["mailboxes"]
                wire.cut()
                busy = [
                    f"{box['subject']}: {box['depth']} waiting, {box['claimed']} claimed"
                    for box in boxes
                    if box["claimed"] or (box["depth"] and box["subject"] in CONSUMED)
                ]
        self.history.violations.extend(f"stuck: {name}" for name in busy)

    async def start(self) -> None:
        """Start the supervisor, and return when it answers."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "NOTIFY_"))}
        command = ["tests.soak.clocked_supervisor", str(self._offset), "run"]
        places = ["--data-dir", str(self.data_dir), "--socket", str(self.socket)]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                *places,
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        async with asyncio.timeout(READY_SECS):
            while True:
                self.expect_alive()
                with suppress(OSError, Lost):
                    wire = await Wire.connect(self.socket)
                    await wire.call("server.ping")
                    wire.cut()
                    return
                await asyncio.sleep(0.02)

    def expect_alive(self) -> None:
        """Raise SupervisorDied if it is not so."""
        if self._process is not None and self._process.returncode is not None:
            raise SupervisorDied(f"the supervisor ended by itself with {self._process.returncode}: see {self.log}")

    def send(self, number: signal.Signals) -> None:
        """Send the supervisor a signal."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill the supervisor with everything it started, at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
            self._process = None

    async def stop(self) -> None:
        """Shut the supervisor down gracefully."""
        self.expect_alive()
        self.send(signal.SIGTERM)
        if self._process is not None:
            async with asyncio.timeout(READY_SECS):
                code = await self._process.wait()
            if code != 0:
                self.history.violations.append(f"the supervisor exited with {code} when it was told to stop")
            self._process = None

    def lose_index(self) -> None:
        """Delete the index of a supervisor that does not run."""
        for path in self.data_dir.glob("index.db*"):
            path.unlink()

    def jump_clock_to(self, seconds: int) -> None:
        """Set how far the supervisor's wall clock is off."""
        if seconds:
            self.history.clock_jumps.append(time.monotonic())
        with self._offset.open("r+b" if self._offset.exists() else "xb", buffering=0) as offset:
            offset.write(struct.pack("q", seconds))  # in one write over the old: it is being read

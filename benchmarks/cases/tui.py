"""The cases of the dashboard: the real program on a pseudo-terminal of 120×36, against a real supervisor.

1. Traffic comes from another process (``python -m benchmarks.cases.tui SOCKET RATE``), which publishes RATE messages a
   second to ten endpoints and handles them, so that the state changes in each of its 5 updates a second.
2. *Key → first byte* is from writing the key to the first byte of output. Keys are pressed when the terminal has been
   quiet for a moment, so that a byte of an update is seldom mistaken for the response.
3. The lag of the event loop is measured by a probe within it (tui_probe.py), on the overview. A message is two events
   (published, handled).
4. The first byte after a key that changes the screen is the new title. The time until the whole screen is drawn is a
   separate figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from benchmarks.harness import Bench, Cases, Goal, Result, percentile_results, percentiles
from benchmarks.rig import floor
from benchmarks.rig.daemon import Daemon, supervisor
from benchmarks.rig.servers import ROOT, cpu_seconds, memory_mb
from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock
from relay_core.messages.dead_letter import encode_dead_letter
from relay_core.messages.subjects import subject_hash

if TYPE_CHECKING:
    from tests.kit.terminal import Terminal

ENDPOINTS = [f"relay.agent.worker-{n}" for n in range(10)]
DEAD = "relay.agent.dead"
STEADY_PER_S = 25
LOADED_PER_S = 1000
WATCH_SECS = 10.0
QUIET_SECS = 0.03
SOME_LETTERS = 500
KEYS = 200
FEELS_INSTANT_MS = 100
"""The limit for drawing a whole screen."""
_HEADER = b"relay"

T = TypeVar("T")


def keys(bench: Bench, name: str, *, p50: float, p95: float) -> Iterable[Result]:
    """Press keys that move the cursor, and keys that change the screen, while the state changes."""

    async def at_dead_letters(measure: Callable[[Terminal], Awaitable[T]]) -> T:
        directory = bench.fresh()
        _write_dead_letters(directory, SOME_LETTERS)
        async with _at_work(directory) as daemon, _dashboard(daemon) as terminal:
            await _open_dead_letters(terminal)
            return await measure(terminal)

    pressed = min(KEYS, bench.messages)
    for metric, sequence in (("cursor", "jjjjkkkk"), ("screen", "61")):
        press = partial(_press, sequence=sequence, count=pressed)
        rounds = [bench.run(at_dead_letters(press)) for _ in range(bench.rounds)]
        yield from percentile_results(name, rounds, {50: p50, 95: p95}, f"{metric}_p", keys=pressed)

    change = partial(_change, count=min(KEYS // 4, bench.messages))
    whole = [bench.run(at_dead_letters(change)) for _ in range(bench.rounds)]
    yield Goal(name, "screen_whole_p50", "ms", "most", FEELS_INSTANT_MS).result(whole)


def processor(bench: Bench, name: str, *, busy: float, idle: float) -> Iterable[Result]:
    """Measure the CPU time of the overview, with and without traffic."""
    for metric, rate, limit in (("busy", STEADY_PER_S, busy), ("idle", 0, idle)):
        rounds = [bench.run(_watch(bench, rate)) for _ in range(bench.rounds)]
        goal = Goal(name, metric, "% of a core", "most", limit)
        yield goal.result([cpu for cpu, _ in rounds], secs=WATCH_SECS)


def output(bench: Bench, name: str, *, usual: float, slow_link: float) -> Iterable[Result]:
    """Count the bytes of the overview while the state changes, with and without --slow-link."""
    for metric, options, limit in (("usual", (), usual), ("slow_link", ("--slow-link",), slow_link)):
        rounds = [bench.run(_watch(bench, STEADY_PER_S, *options)) for _ in range(bench.rounds)]
        goal = Goal(name, metric, "KiB/s", "most", limit)
        yield goal.result([rate for _, rate in rounds], secs=WATCH_SECS)


def start(bench: Bench, name: str, *, paint: float, help_: float) -> Iterable[Result]:
    """Start the program: to the first frame with its header, and to the end of --help."""

    async def first_paint() -> float:
        async with supervisor(bench.fresh()) as daemon, _dashboard(daemon, wait=False) as terminal:
            await terminal.until_raw(_HEADER)
            return (terminal.arrivals[-1][0] - terminal.started) * 1e3

    painted, bare, helped = [], [], []
    for _ in range(bench.rounds):
        painted.append(bench.run(first_paint()))
        bare.append(_run_python("-c", "import textual.app"))
        helped.append(_run_python("-m", "relay_tui", "--help"))
    yield Goal(name, "first_paint", "ms", "most", paint).result(painted, textual_import_ms=median(bare))
    asked = [sys.executable, "-X", "importtime", "-m", "relay_tui", "--help"]
    imported = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stderr
    yield Goal(name, "help", "ms", "most", help_).result(helped, imports_textual="textual" in imported)


def many_dead_letters(bench: Bench, name: str, *, memory: float, filter_: float) -> Iterable[Result]:
    """Open a long list of dead letters, go to its end, and filter it."""

    async def look() -> tuple[float, float]:
        directory = bench.fresh()
        _write_dead_letters(directory, bench.stored)
        _run_python("-m", "benchmarks.rig.running", str(directory))  # fills the index
        async with supervisor(directory) as daemon, RelayClient(daemon.socket) as client:
            await _indexed(client, bench.stored)
            async with _dashboard(daemon) as terminal:
                await _open_dead_letters(terminal)
                for key in ("G", "g", "G"):
                    await terminal.bytes_after(terminal.send(key))
                    await _quiet(terminal, 0.5)
                    await terminal.until(lambda: "loading" not in terminal.text())  # the end may be far
                held = memory_mb(terminal.process.pid)
                terminal.send("/")
                await _quiet(terminal, 0.2)
                text = f"reason~kind-{bench.stored - 1}"
                terminal.send(text[:-1])
                await _quiet(terminal, 0.5)
                since = terminal.send(text[-1])
                begin = perf_counter()
                await terminal.until_raw(b"m1 match", since)
                return held, (terminal.arrivals[-1][0] - begin) * 1e3

    rounds = [bench.run(look()) for _ in range(min(bench.rounds, 3))]
    yield Goal(name, "rss", "MB", "most", memory).result([held for held, _ in rounds], stored=bench.stored)
    yield Goal(name, "filter", "ms", "most", filter_).result([took for _, took in rounds], stored=bench.stored)


def lag(bench: Bench, name: str, *, p99: float) -> Iterable[Result]:
    """Measure the lag of the event loop on the overview under load."""

    async def watch() -> list[float]:
        directory = bench.fresh()
        found, data = directory / "late.json", bench.fresh()
        async with _at_work(data, LOADED_PER_S) as daemon:
            program = ("benchmarks.rig.tui_probe", str(daemon.socket), str(found))
            async with _terminal(*program) as terminal:
                await asyncio.sleep(WATCH_SECS)
                terminal.send("q")
                await terminal.exit_code()
        late = json.loads(found.read_text())
        return percentiles(late[len(late) // 5 :])  # without the start

    rounds = [bench.run(watch()) for _ in range(bench.rounds)]
    yield from percentile_results(name, rounds, {99: p99}, events_per_s=2 * LOADED_PER_S)


# A dashboard at work


@asynccontextmanager
async def _dashboard(daemon: Daemon, *options: str, wait: bool = True) -> AsyncIterator[Terminal]:
    async with _terminal("relay_tui", "--socket", str(daemon.socket), *options, wait=wait) as terminal:
        yield terminal


@asynccontextmanager
async def _terminal(program: str, *options: str, wait: bool = True) -> AsyncIterator[Terminal]:
    # The emulator behind it is a tool of the tests: only these cases need it.
    from tests.kit.terminal import Terminal

    async with Terminal([sys.executable, "-m", program, *options]) as terminal:
        if wait:
            await terminal.until("live")
        yield terminal


@asynccontextmanager
async def _at_work(directory: Path, rate: int = STEADY_PER_S) -> AsyncIterator[Daemon]:
    """Run a supervisor with traffic from another process."""
    async with supervisor(directory) as daemon:
        if not rate:
            yield daemon
            return
        command = [sys.executable, "-m", "benchmarks.cases.tui", str(daemon.socket), str(rate)]
        traffic = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        try:
            assert traffic.stdout is not None
            if not await traffic.stdout.readline():
                raise RuntimeError("the traffic process has ended")
            yield daemon
        finally:
            traffic.kill()
            await traffic.wait()


def _run_python(*arguments: str) -> float:
    """Return how long a whole run took, in milliseconds."""
    begin = perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
    return (perf_counter() - begin) * 1e3


async def _watch(bench: Bench, rate: int, *options: str) -> tuple[float, float]:
    """Return the processor time of the overview in percent, and its output in KiB per second."""
    async with _at_work(bench.fresh(), rate) as daemon, _dashboard(daemon, *options) as terminal:
        await asyncio.sleep(2)  # excludes the work after its start
        pid = terminal.process.pid
        cpu, count, begin = cpu_seconds(pid), len(terminal.raw), perf_counter()
        await asyncio.sleep(WATCH_SECS)
        took = perf_counter() - begin
        return (cpu_seconds(pid) - cpu) / took * 100, (len(terminal.raw) - count) / took / 1024


async def _open_dead_letters(terminal: Terminal) -> None:
    terminal.send("6")
    await terminal.until(lambda: "Dead letters" in terminal.screen()[0] and DEAD in terminal.text())
    await _quiet(terminal, 0.5)


async def _press(terminal: Terminal, sequence: str, count: int) -> list[float]:
    """Return the percentiles of key → first byte, in milliseconds."""
    times = []
    for key in islice(cycle(sequence), count):
        await _quiet(terminal)
        begin = perf_counter()
        times.append((await terminal.bytes_after(terminal.send(key)) - begin) * 1e3)
    return percentiles(times)


async def _change(terminal: Terminal, count: int) -> float:
    """Return the median time from a key to its screen, in milliseconds."""
    times = []
    for key, marker in islice(cycle([("1", b"Throughput"), ("6", b"REASON")]), count):
        await _quiet(terminal)
        begin = perf_counter()
        await terminal.until_raw(marker, terminal.send(key))
        times.append((terminal.arrivals[-1][0] - begin) * 1e3)
    return median(times)


async def _quiet(terminal: Terminal, secs: float = QUIET_SECS) -> None:
    """Return once there was no output for a moment, or after a few attempts."""
    for _ in range(10):
        since = perf_counter() - terminal.arrivals[-1][0]
        if since >= secs:
            return
        await asyncio.sleep(secs - since)


async def _indexed(client: RelayClient, count: int) -> None:
    for _ in range(6000):
        if (await client.dead_letter_page(limit=1)).total >= count:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the dead letters are not in the index")


def _write_dead_letters(directory: Path, count: int) -> None:
    """Write the files of dead letters; the supervisor finds them when it starts."""
    mailbox = floor.make_mailbox(directory, DEAD)
    now, target = SystemClock().now_ms(), subject_hash(DEAD)
    for at, (message_id, data) in enumerate(floor.messages(DEAD, count)):
        record = encode_dead_letter(
            data, reason=f"kind-{at} could not be handled", code="handler_failed", failed_ms=now, endpoint_hash=target
        )
        (mailbox / "failed" / f"{message_id}.json").write_bytes(record)


# Traffic, as a program


async def traffic(socket: Path, rate: int) -> None:
    """Publish `rate` messages a second in batches, and handle them, until killed."""
    async with RelayClient(socket) as client, asyncio.TaskGroup() as group:
        for subject in ENDPOINTS:
            await client.register_endpoint(subject)
            group.create_task(_handle(client, subject))
        print("ready", flush=True)
        subjects = cycle(ENDPOINTS)
        begin, sent = perf_counter(), 0
        parent = os.getppid()
        while os.getppid() == parent:
            due = int((perf_counter() - begin) * rate) - sent
            batch = [
                {"subject": next(subjects), "payload": floor.PAYLOAD, "sender": f"relay.agent.client-{n % 5}"}
                for n in range(min(due, 100))
            ]
            if batch:
                await client.publish_many(batch)
                sent += len(batch)
            await asyncio.sleep(0.02)


async def _handle(client: RelayClient, subject: str) -> None:
    async with client.subscribe(subject) as messages:
        async for _ in messages:
            pass


TUI_CASES: Cases = {
    "tui_keys": partial(keys, p50=10, p95=30),
    "tui_cpu": partial(processor, busy=5, idle=1),
    "tui_output": partial(output, usual=20, slow_link=3),
    "tui_start": partial(start, paint=600, help_=150),
    "tui_dead_letters": partial(many_dead_letters, memory=150, filter_=100),
    "tui_lag": partial(lag, p99=25),
}

if __name__ == "__main__":
    asyncio.run(traffic(Path(sys.argv[1]), int(sys.argv[2])))

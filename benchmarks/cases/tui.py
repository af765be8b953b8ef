"""The cases of the dashboard: the real program on a real terminal of 120×36, against a real supervisor.

1. Traffic comes from another process (``python -m benchmarks.cases.tui SOCKET RATE``), which publishes so many messages
   a second to ten endpoints and handles them, so that the state changes in each of its 5 updates a second.
2. *Key → first byte* is from writing the key to the first byte that comes after it. Keys are pressed when the
   terminal has been quiet for a moment, so that a byte of an update is seldom taken for the answer.
3. The lag of the event loop is measured by a probe within it (tui_probe.py), on the overview. A message is two events
   (published, handled).
4. The first byte after a key that changes the screen is the new title. When the screen itself is there is a figure of
   its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.harness import Bench, Goal, Result
from benchmarks.rig import floor
from benchmarks.rig.daemon import ROOT, Daemon, supervisor
from benchmarks.rig.servers import cpu_seconds, memory_mb
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
"""For a whole screen."""
_HEADER = b"relay"


def keys(bench: Bench, name: str, *, p50: float, p95: float) -> Iterable[Result]:
    """Press keys that move the cursor, and keys that change the screen, while the state changes."""

    async def press(what: str) -> list[float]:
        directory = bench.fresh()
        _write_dead_letters(directory, SOME_LETTERS)
        async with _at_work(directory) as daemon, _dashboard(daemon) as terminal:
            await _open_dead_letters(terminal)
            return await _press(terminal, what, min(KEYS, bench.messages))

    for metric, what in (("cursor", "jjjjkkkk"), ("screen", "61")):
        rounds = [bench.run(press(what)) for _ in range(bench.rounds)]
        for percent, limit in ((50, p50), (95, p95)):
            goal = Goal(name, f"{metric}_p{percent}", "ms", "most", limit)
            yield goal.result([one[percent - 1] for one in rounds], keys=min(KEYS, bench.messages))

    async def change() -> float:
        directory = bench.fresh()
        _write_dead_letters(directory, SOME_LETTERS)
        async with _at_work(directory) as daemon, _dashboard(daemon) as terminal:
            await _open_dead_letters(terminal)
            return await _change(terminal, min(KEYS // 4, bench.messages))

    whole = [bench.run(change()) for _ in range(bench.rounds)]
    yield Goal(name, "screen_whole_p50", "ms", "most", FEELS_INSTANT_MS).result(whole)


def processor(bench: Bench, name: str, *, busy: float, idle: float) -> Iterable[Result]:
    """Watch the overview for a while, with and without traffic."""
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
    yield Goal(name, "rss", "MB", "most", memory).result([one[0] for one in rounds], stored=bench.stored)
    yield Goal(name, "filter", "ms", "most", filter_).result([one[1] for one in rounds], stored=bench.stored)


def lag(bench: Bench, name: str, *, p99: float) -> Iterable[Result]:
    """Watch the overview under load; see rule 3."""

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
        return quantiles(late[len(late) // 5 :], n=100, method="inclusive")  # without the start

    rounds = [bench.run(watch()) for _ in range(bench.rounds)]
    yield Goal(name, "p99", "ms", "most", p99).result([one[98] for one in rounds], events_per_s=2 * LOADED_PER_S)


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
                raise RuntimeError("there is no traffic")
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
        await asyncio.sleep(2)  # what it does once after its start is not what it costs to keep open
        pid = terminal.process.pid
        cpu, count, begin = cpu_seconds(pid), len(terminal.raw), perf_counter()
        await asyncio.sleep(WATCH_SECS)
        took = perf_counter() - begin
        return (cpu_seconds(pid) - cpu) / took * 100, (len(terminal.raw) - count) / took / 1024


async def _open_dead_letters(terminal: Terminal) -> None:
    terminal.send("6")
    await terminal.until(lambda: "Dead letters" in terminal.screen()[0] and DEAD in terminal.text())
    await _quiet(terminal, 0.5)


async def _press(terminal: Terminal, what: str, count: int) -> list[float]:
    """Return the percentiles of key → first byte, in milliseconds."""
    times = []
    for key in islice(cycle(what), count):
        await _quiet(terminal)
        begin = perf_counter()
        times.append((await terminal.bytes_after(terminal.send(key)) - begin) * 1e3)
    return quantiles(times, n=100, method="inclusive")


async def _change(terminal: Terminal, count: int) -> float:
    """Return the median time from a key to the screen that it leads to, in milliseconds."""
    times = []
    for key, marker in islice(cycle([("1", b"Throughput"), ("6", b"REASON")]), count):
        await _quiet(terminal)
        begin = perf_counter()
        await terminal.until_raw(marker, terminal.send(key))
        times.append((terminal.arrivals[-1][0] - begin) * 1e3)
    return median(times)


async def _quiet(terminal: Terminal, secs: float = QUIET_SECS) -> None:
    """Return once nothing has come for a moment, or after a few attempts."""
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
    """Publish so many messages a second in batches, and handle them, until killed."""
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


TUI_CASES: dict[str, Callable[[Bench, str], Iterable[Result]]] = {
    "tui_keys": partial(keys, p50=10, p95=30),
    "tui_cpu": partial(processor, busy=5, idle=1),
    "tui_output": partial(output, usual=20, slow_link=3),
    "tui_start": partial(start, paint=600, help_=150),
    "tui_dead_letters": partial(many_dead_letters, memory=150, filter_=100),
    "tui_lag": partial(lag, p99=25),
}
"""Every case by name, in the order of running."""

if __name__ == "__main__":
    asyncio.run(traffic(Path(sys.argv[1]), int(sys.argv[2])))

"""The demo: everything a screen could show comes by itself, and whatever happens nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock, parse_iso
from relay_core.errors import SupervisorUnavailable
from relay_core.messages.dead_letter import DeadLetter, DeadLetterFilter
from relay_core.protocol.live_state import LiveState
from relay_core.rules.breaker import CircuitState
from relay_tui.demo import dead_letters, external, failing, sample_texts, settings
from relay_tui.demo.bus_access import BusAccess
from relay_tui.demo.session import DemoSession
from relay_tui.demo.traffic import ALL_WORKLOADS, MAILBOXES
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until


@asynccontextmanager
async def run_demo(directory: Path | None = None) -> AsyncIterator[DemoSession]:
    session = DemoSession.start(directory)
    try:
        await session.ready()
        yield session
    finally:
        await asyncio.to_thread(session.stop)


WARNING = settings.CONFIG["reliability"]["backpressure"]["pressureWarningAt"]


@pytest.fixture(scope="module")
def world() -> Iterator[DemoSession]:
    """One demo for all tests that only look on."""
    with DemoSession.start() as world:
        yield world
    assert not world.directory.exists()
    assert processes_of(world.directory) == []


@pytest.fixture
async def client(world: DemoSession) -> AsyncIterator[RelayClient]:
    await world.ready()
    async with RelayClient(world.socket, data_dir=world.data_dir) as client:
        yield client


def processes_of(directory: Path) -> list[str]:
    """Return the processes that were started for a directory."""
    if not Path("/proc/self/cmdline").exists():
        listing = subprocess.run(["ps", "-axww", "-o", "command="], capture_output=True, text=True, check=True)
        return [line for line in listing.stdout.splitlines() if f"{directory}" in line]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if f"{directory}" in line]


async def has_processes(directory: Path, count: int) -> bool:
    """Tell whether so many processes run for a directory, without holding the loop meanwhile."""
    return len(await asyncio.to_thread(processes_of, directory)) == count


def breaker_states(state: LiveState, subject: str) -> list[CircuitState]:
    """Return the states that a breaker has been in."""
    return [
        move.state for breaker in state.breakers.values() if breaker.subject == subject for move in breaker.transitions
    ]


def codes(state: LiveState) -> set[str]:
    return {group.code for group in state.dead_letters.values()}


def adapter_counts(state: LiveState, id: str) -> tuple[int, int]:
    adapter = state.adapters.get(id)
    return (adapter.state.delivered, adapter.state.failed) if adapter and adapter.state else (0, 0)


SIGHTS: dict[str, Callable[[LiveState], object]] = {
    "throughput": lambda state: state.throughput is not None and state.throughput.rate_10s > 3,
    "latency": lambda state: state.throughput is not None and state.throughput.total_us.count > 20,
    "a breaker that opens": lambda state: CircuitState.OPEN in breaker_states(state, failing.SEARCH),
    "a mailbox under pressure": lambda state: any(
        box.pressure >= WARNING for box in state.mailboxes.values() if box.subject == failing.REVIEWER
    ),
    "mail that waits at a desk": lambda state: any(
        box.depth for box in state.mailboxes.values() if box.subject.startswith("relay.desk.")
    ),
    "a sender at its limit": lambda state: (
        (sender := state.senders.get(failing.CRAWLER)) is not None and sender.count >= sender.limit
    ),
    "refusals": lambda state: (
        state.throughput is not None
        and {"rate_limited", "circuit_open", "access_denied", "backpressure"} <= set(state.throughput.refusals)
    ),
    **{
        f"dead letters: {code}": lambda state, code=code: code in codes(state)  # type: ignore[misc]
        for code in (
            "consumer_failed", "timeout", "no_match", "max_hops", "cycle", "expired", "call_budget", "adapter_failed",
            "malformed", "disconnected",
        )
    },
    "an adapter that works": lambda state: adapter_counts(state, "status-page")[0],
    "an adapter that fails": lambda state: adapter_counts(state, "pager")[1],
    "a plugin that works": lambda state: adapter_counts(state, "journal")[0],
    "an adapter that is off": lambda state: not state.adapters["old-chat"].enabled,
    "an adapter with a problem": lambda state: "https" in (state.adapters["crm"].problem or ""),
    "no adapter with a warning": lambda state: not any(adapter.warning for adapter in state.adapters.values()),
    "jobs that ran": lambda state: len([job for job in state.jobs.values() if job.last and job.last.outcome]) >= 4,
    "events": lambda state: len(state.events) > 5,
    "no problem with the files": lambda state: not state.problems,
}  # fmt: skip


@pytest.mark.parametrize("sight", SIGHTS.values(), ids=SIGHTS)
async def test_every_screen_has_something_to_show(client: RelayClient, sight: Callable[[LiveState], object]) -> None:
    async with asyncio.timeout(60), client.watch() as watch:
        async for state in watch:
            if sight(state):
                return


async def test_conversations_have_many_hops_each_with_its_parent(client: RelayClient) -> None:
    async def far() -> list[DeadLetter]:
        return await client.dead_letters(filter=DeadLetterFilter(code="max_hops"))

    await until(far)
    (span,) = await client.trace((await far())[0].message_id)
    conversation = await client.conversation(span.trace_id)
    assert {span.hops_after for span in conversation} == {1, 2, 3, 4, 5}
    ids = {span.message_id for span in conversation}
    assert [span.parent_id in ids for span in conversation] == [False, True, True, True, True, True]


async def test_hostile_texts_arrive_as_they_are(client: RelayClient) -> None:
    async def texts() -> list[str]:
        found = await client.dead_letters(
            filter=DeadLetterFilter(endpoint=dead_letters.MAILROOM, code="consumer_failed")
        )
        return [letter.envelope.payload["content"] for letter in found if letter.envelope is not None]

    await until(texts)
    assert set(await texts()) <= set(sample_texts.HOSTILE)
    assert all(
        any(sign in text for text in sample_texts.HOSTILE) for sign in ("\x1b", "\u202e", "[bold", "番", "🎉", "\x9b")
    )


async def test_a_replay_of_the_failed_deploys_succeeds_at_once(client: RelayClient) -> None:
    failed = DeadLetterFilter(endpoint=failing.DEPLOYS, code="consumer_failed")

    async def replayable() -> list[str]:
        """Return the failed deploys for which the registry is back."""
        back = SystemClock().now_ms() - failing.REGISTRY_BACK_MS
        letters = [letter.envelope for letter in await client.dead_letters(filter=failed)]
        return [envelope.id for envelope in letters if envelope is not None and parse_iso(envelope.created_at) < back]

    async def enough() -> bool:
        return len(await replayable()) >= 4

    await until(enough)
    plan = await client.plan_replay(ids=await replayable())
    outcome = await client.run_replay(plan.id)
    assert (outcome.delivered, outcome.failed, outcome.skipped) == (len(plan.items), 0, 0)
    replayed = {item.message_id for item in plan.items}

    async def are_handled() -> bool:
        return replayed.isdisjoint(letter.message_id for letter in await client.dead_letters(filter=failed))

    await until(are_handled)


@pytest.mark.slow
async def test_the_flaky_endpoint_heals(client: RelayClient) -> None:
    async with asyncio.timeout(100), client.watch() as watch:
        async for state in watch:
            seen = breaker_states(state, failing.SEARCH)
            if CircuitState.OPEN in seen and seen[-1] is CircuitState.CLOSED:
                return


async def test_a_supervisor_that_is_killed_comes_back_and_the_traffic_goes_on(tmp_path: Path) -> None:
    async with run_demo(tmp_path) as world, RelayClient(world.socket, data_dir=world.data_dir) as client:

        async def is_played_by(pid: int, *, another: bool) -> bool:
            status = await client.status()
            return (status.server.pid != pid) is another and status.rates.publishes > 10 and status.subscriptions > 10

        first = (await client.info()).pid
        await until(lambda: is_played_by(first, another=False))
        os.kill(first, signal.SIGKILL)
        await until(lambda: is_played_by(first, another=True))


PARENT = """
import signal, sys
from pathlib import Path
from relay_tui.demo.session import DemoSession
world = DemoSession.start(Path(sys.argv[1]))
print(world.directory, flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "when_up"),
    [
        (signal.SIGKILL, True),
        (signal.SIGKILL, False),
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
        (signal.SIGINT, False),
    ],
    ids=["killed", "killed at once", "terminated", "hung up", "interrupted"],
)
async def test_however_the_dashboard_goes_nothing_is_left(
    number: signal.Signals, when_up: bool, tmp_path: Path
) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    directory = Path((await parent.stdout.readline()).decode().strip())
    if when_up:
        await until(lambda: has_processes(directory, 3))  # the runner, the supervisor, the traffic
        assert os.listdir(tmp_path) == [directory.name]
    parent.send_signal(number)
    await parent.wait()
    await until(lambda: has_processes(directory, 0))
    assert os.listdir(tmp_path) == []


async def test_the_runner_ends_everything_when_it_is_told_to(tmp_path: Path) -> None:
    async with run_demo(tmp_path) as world:
        world.runner.terminate()
        await until(lambda: has_processes(world.directory, 0))
        assert os.listdir(tmp_path) == []


async def test_a_supervisor_that_does_not_start_says_why(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)  # too long for a socket
    deep.mkdir()
    with pytest.raises(SupervisorUnavailable, match=r"did not start: cannot start: the socket's path"):
        async with run_demo(deep):
            pass
    assert os.listdir(deep) == []


async def test_the_demo_is_not_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RELAY_DATA_DIR": str(tmp_path), "RELAY_SOCKET": "/nowhere/s", "RELAY_TOKEN": "mine"}.items():
        monkeypatch.setenv(name, value)
    async with (
        run_demo() as world,
        RelayClient(world.socket, data_dir=world.data_dir, token=world.operator_token()) as client,
    ):

        async def is_played() -> bool:
            return (await client.metrics()).publishes > 0

        await until(is_played)
    assert os.listdir(tmp_path) == []


async def test_the_janitor_bounds_what_would_grow(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        astray = {"subject": "relay.agent.nobody", "payload": "hello?", "sender": "relay.desk.ada"}
        await client.publish_many([astray] * (external.LETTERS_MOST + 5))
        newest = [letter.message_id for letter in (await client.dead_letters())[-external.LETTERS_KEPT :]]
        bus = BusAccess(client, tmp_path, 1, "janitor", 0.0)

        async def are_few() -> bool:
            return [letter.message_id for letter in await client.dead_letters()] == newest

        async with asyncio.TaskGroup() as group:
            work = group.create_task(external.janitor(bus))
            await until(are_few)
            work.cancel()


def test_the_oldest_events_are_swept_and_the_open_segment_never(tmp_path: Path) -> None:
    day = tmp_path / "events" / "date=2026-11-16"
    day.mkdir(parents=True)
    for number in range(external.SEGMENTS_KEPT + 3):
        (day / f"10-{number:04}-1.jsonl").touch()
    (day / "_10-0000-2.jsonl").touch()
    external.sweep_events(tmp_path)
    kept = sorted(path.name for path in day.iterdir())
    assert kept == [f"10-{n:04}-1.jsonl" for n in range(3, external.SEGMENTS_KEPT + 3)] + ["_10-0000-2.jsonl"]


def test_every_workload_has_its_own_random_numbers() -> None:
    def draws(seed: int, name: str) -> list[float]:
        bus = BusAccess(RelayClient("/nowhere/s"), Path("/nowhere"), seed, name, 0.0)
        return [bus.random.random() for _ in range(3)]

    assert len({tuple(draws(5, name)) for name in ALL_WORKLOADS}) == len(ALL_WORKLOADS)
    assert draws(5, "search") == draws(5, "search") != draws(6, "search")


def test_every_mailbox_is_on_the_bill() -> None:
    import relay_tui.demo

    bill = relay_tui.demo.__doc__ or ""
    assert [name for name in MAILBOXES if name.rpartition(".")[2] not in bill and f"{name[:11]}*" not in bill] == []


def test_the_command_relay_demo_is_the_dashboard_wherever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "relay_tui.py").write_text("raise SystemExit('somebody else is called relay_tui here')")
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "relay_supervisor.cli", "demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("relay-tui: not a terminal")

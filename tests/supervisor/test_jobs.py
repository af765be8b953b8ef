"""Jobs: each can be run, seen and set; a run that goes wrong stays its own affair."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relay_core import NotFound, RelayConfig, RelayCore, RelayError
from relay_core.clock import SystemClock
from relay_core.config import JobConfig, JobsConfig, NightlyConfig
from relay_core.errors import Closed
from relay_core.events import Event, read_events
from relay_core.operations import JobRun, JobState
from relay_core.testing import FakeClock
from relay_supervisor.jobs import FIRST_RUN_SECS, JOBS, Every, Jobs

PROGRAM = str(Path(__file__).with_name("child_program.py"))
A, SENDER = "relay.agent.a", "relay.agent.s"
WAIT = 60.0
SOON = 0.2
"""A timeout that is meant to pass."""
NAMES = ["expire", "purge", "unread", "retention", "index", "metrics"]
OFF = JobsConfig.model_validate({name: {"enabled": False} for name in NAMES})
"""Nothing runs by itself."""
NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.fixture
async def relay(data_dir: Path, clock: FakeClock) -> AsyncIterator[RelayCore]:
    async with RelayCore(data_dir, RelayConfig(durability="os", jobs=OFF), clock) as relay:
        await relay.register_endpoint(A)
        yield relay


@pytest.fixture
async def jobs(relay: RelayCore, clock: FakeClock) -> AsyncIterator[Jobs]:
    async with Jobs(relay, clock) as jobs:
        yield jobs


def command(*arguments: object, timeout_secs: int = 60) -> JobsConfig:
    """Return a configuration whose nightly job is our program."""
    line = (sys.executable, PROGRAM, *map(str, arguments))
    return OFF.model_copy(update={"metrics": NightlyConfig(enabled=False, command=line, timeout_secs=timeout_secs)})


def state(jobs: Jobs, name: str) -> JobState:
    return next(state for state in jobs.states() if state.name == name)


async def job_events(relay: RelayCore, data_dir: Path) -> list[Event]:
    await asyncio.wrap_future(relay.bus.events.seal())
    paths = sorted((data_dir / "events").glob("date=*/*.jsonl"))
    return [event for path in paths for event in read_events(path) if event.kind == "job"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT):
        while not condition():  # noqa: ASYNC110 - of another process there is no event
            await asyncio.sleep(0.01)


def is_gone(pid_file: Path) -> bool:
    try:
        return Path(f"/proc/{pid_file.read_text()}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_every_job_is_a_key_of_the_configuration_and_the_other_way_round() -> None:
    assert [job.name for job in JOBS] == list(JobsConfig.model_fields) == NAMES


# What each does


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("expire", {"expired": 0}),
        ("purge", {"purged": 0}),
        ("unread", {"retired": 0}),
        ("retention", {"traces": 0, "event_days": 0, "tmp_files": 0, "mailboxes": 0}),
        ("index", {"added": 0, "ended": 0}),
    ],
)
async def test_upkeep_runs_by_hand_and_counts(jobs: Jobs, clock: FakeClock, name: str, counts: dict[str, int]) -> None:
    assert not state(jobs, name).enabled
    run = await jobs.run(name)
    assert run == JobRun(started_at=clock.now_ms(), ended_at=clock.now_ms(), outcome="ok", counts=counts)
    assert state(jobs, name).last == run


async def test_what_expires_is_counted(relay: RelayCore, jobs: Jobs, clock: FakeClock) -> None:
    for number in range(3):
        await relay.publish(A, number, sender=SENDER)
    clock.advance(3601)
    assert (await jobs.run("expire")).counts == {"expired": 3}
    clock.advance(8 * 86_400)
    assert (await jobs.run("purge")).counts == {"purged": 3}


async def test_a_run_is_two_events(relay: RelayCore, jobs: Jobs, clock: FakeClock, data_dir: Path) -> None:
    jobs.start("index")
    clock.advance(2)
    await jobs.run("index")
    started, ended = await job_events(relay, data_dir)
    assert (started.code, started.status, started.detail) == ("index", "started", None)
    assert (ended.code, ended.status, ended.detail, ended.handle_us) == ("index", "ok", "added=0 ended=0", 2_000_000)


# Going wrong


async def read_only(relay: RelayCore, on: bool) -> None:
    """Make the index refuse to be written, or take it back."""
    await relay.bus.index.run(lambda db: db.execute(f"PRAGMA query_only = {on:d}"))


async def test_a_job_that_fails_says_why_and_runs_again(
    relay: RelayCore, jobs: Jobs, data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await read_only(relay, True)
    run = await jobs.run("index")
    assert (run.outcome, run.error) == ("failed", "OperationalError: attempt to write a readonly database")
    assert "the job index has failed" in caplog.text
    events = [(event.status, event.detail) for event in await job_events(relay, data_dir)]
    assert events == [("started", None), ("failed", run.error)]
    await read_only(relay, False)
    assert (await jobs.run("index")).outcome == "ok"


async def test_a_step_that_fails_does_not_stop_the_others(relay: RelayCore, jobs: Jobs) -> None:
    await read_only(relay, True)
    run = await jobs.run("retention")
    assert (run.outcome, run.counts) == ("failed", {"event_days": 0, "tmp_files": 0, "mailboxes": 0})


async def test_upkeep_that_hangs_is_given_up(relay: RelayCore, clock: FakeClock) -> None:
    async with Jobs(relay, clock, timeout=SOON) as jobs, relay.bus.opening:  # which it waits for
        run = await jobs.run("retention")
        assert (run.outcome, run.error) == ("timed_out", "took longer than 0.2 s")
        assert run.counts == {"traces": 0, "event_days": 0, "tmp_files": 0}
        assert (await jobs.run("expire")).outcome == "ok"


async def test_an_unknown_job_is_told_with_the_known_ones(jobs: Jobs) -> None:
    with pytest.raises(NotFound, match="no job sweep; there are expire, purge, unread, retention, index, metrics"):
        await jobs.run("sweep")
    with pytest.raises(NotFound):
        jobs.start("sweep")
    with pytest.raises(NotFound, match="not running"):
        await jobs.cancel("expire")


# One at a time


async def test_whoever_asks_for_a_job_that_runs_joins_it(relay: RelayCore, jobs: Jobs, data_dir: Path) -> None:
    changes: list[bool] = []
    jobs.on_change = lambda: changes.append(state(jobs, "retention").running)
    async with asyncio.TaskGroup() as group, relay.bus.opening:
        begun = jobs.start("retention")
        assert begun.running
        assert begun.last is not None
        assert begun.last.outcome is None
        waiters = [group.create_task(jobs.run("retention")) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()  # who gives up waiting stops nobody
        await asyncio.sleep(0)
        assert state(jobs, "retention").running
    assert waiters[0].cancelled()
    assert waiters[1].result() is waiters[2].result()
    assert waiters[1].result().outcome == "ok"
    assert changes == [True, False]
    assert len(await job_events(relay, data_dir)) == 2


async def test_a_run_can_be_broken_off(relay: RelayCore, jobs: Jobs) -> None:
    async with asyncio.TaskGroup() as group, relay.bus.opening:
        waiter = group.create_task(jobs.run("retention"))
        await asyncio.sleep(0)
        assert (await jobs.cancel("retention")).outcome == "cancelled"
    assert waiter.result().outcome == "cancelled"
    assert not state(jobs, "retention").running


async def test_leaving_ends_what_runs(relay: RelayCore, clock: FakeClock, tmp_path: Path, data_dir: Path) -> None:
    async with asyncio.TaskGroup() as group, relay.bus.opening, Jobs(relay, clock) as jobs:
        jobs.apply(command("family", tmp_path / "own.pid", tmp_path / "grand.pid"))
        waiters = [group.create_task(jobs.run(name)) for name in ("metrics", "retention")]
        await until(lambda: (tmp_path / "own.pid").exists() and (tmp_path / "grand.pid").exists())
        jobs.start("expire")
    assert [waiter.result().outcome for waiter in waiters] == ["cancelled", "cancelled"]
    last = state(jobs, "expire").last
    assert last is not None
    assert last.outcome == "ok"  # upkeep gets a moment
    await until(lambda: is_gone(tmp_path / "own.pid") and is_gone(tmp_path / "grand.pid"))
    assert "cancelled" in [event.status for event in await job_events(relay, data_dir)]
    with pytest.raises(Closed):
        await jobs.run("expire")


# The nightly process


@pytest.mark.parametrize(
    ("arguments", "outcome", "error", "output"),
    [
        pytest.param(["exit", 0], "ok", None, "out\nerr\n", id="well"),
        pytest.param(["exit", 3], "failed", "exit code 3: err", "out\nerr\n", id="with a code"),
        pytest.param(["die"], "failed", "was killed by SIGKILL", "", id="by a signal"),
    ],
)
async def test_how_the_process_ends_is_how_the_job_ends(
    jobs: Jobs, arguments: list[object], outcome: str, error: str | None, output: str
) -> None:
    jobs.apply(command(*arguments))
    run = await jobs.run("metrics")
    assert (run.outcome, run.error, run.output) == (outcome, error, output)


async def test_a_process_that_hangs_is_killed(jobs: Jobs, tmp_path: Path) -> None:
    jobs.apply(command("deaf", tmp_path / "own.pid", timeout_secs=1))
    run = await jobs.run("metrics")
    assert (run.outcome, run.error) == ("timed_out", "took longer than 1 s and was killed")
    assert is_gone(tmp_path / "own.pid")


async def test_a_command_that_is_not_there_fails_the_job(jobs: Jobs) -> None:
    jobs.apply(OFF.model_copy(update={"metrics": NightlyConfig(enabled=False, command=("/no/such/command",))}))
    run = await jobs.run("metrics")
    assert run.outcome == "failed"
    assert "No such file" in str(run.error)


async def test_the_process_finds_the_data_directory_and_every_event(
    relay: RelayCore, jobs: Jobs, data_dir: Path
) -> None:
    await relay.publish(A, 1, sender=SENDER)
    script = "import os, glob; print(*map(os.path.basename, glob.glob(os.environ['RELAY_DATA_DIR'] + '/events/*/*')))"
    line = (sys.executable, "-c", script)
    jobs.apply(OFF.model_copy(update={"metrics": NightlyConfig(enabled=False, command=line)}))
    run = await jobs.run("metrics")
    assert run.output is not None
    assert run.output.strip().endswith(".jsonl")
    assert not run.output.startswith("_")  # sealed


async def test_our_own_spark_part_is_what_runs_by_default(
    jobs: Jobs, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("spark", "pyspark"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "spark" / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    monkeypatch.chdir(tmp_path)  # where the child looks first
    monkeypatch.syspath_prepend(tmp_path)
    jobs.look_around()
    assert state(jobs, "metrics").problem is None
    run = await jobs.run("metrics")
    assert (run.outcome, run.output) == ("ok", f"['nightly', '--data-dir', {str(data_dir)!r}]\n")


@pytest.mark.parametrize("missing", ["spark", "pyspark"])
async def test_without_the_spark_part_its_job_says_how_to_get_it(
    jobs: Jobs, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    jobs.look_around()
    jobs.apply(OFF.model_copy(update={"metrics": NightlyConfig()}))
    found = state(jobs, "metrics")
    assert found.problem is not None
    assert "pip install 'relay-bus[spark]'" in found.problem
    assert (found.enabled, found.next_run) == (True, None)
    with pytest.raises(RelayError, match="not installed") as caught:
        await jobs.run("metrics")
    assert caught.value.code == "job_unavailable"
    jobs.scheduler.modify_job("metrics", next_run_time=datetime.now(UTC))  # it falls due now
    await asyncio.sleep(0)
    await until(lambda: jobs.scheduler.get_job("metrics").next_run_time > datetime.now(UTC))
    assert state(jobs, "metrics").last is None
    assert not caplog.records  # every night would be too often
    monkeypatch.undo()
    jobs.apply(command("exit", 0))
    assert state(jobs, "metrics").problem is None


# The schedule


async def test_the_schedule_as_it_comes(jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    now = SystemClock().now_ms()
    assert {name: state(jobs, name).schedule for name in NAMES} == {
        "expire": "every 60 s",
        "purge": "every 60 min",
        "unread": "every 60 min",
        "retention": "every 24 h",
        "index": "every 10 min",
        "metrics": "daily at 02:15 UTC",
    }
    for name in NAMES[:-1]:
        found = state(jobs, name).next_run
        assert found is not None
        assert now - WAIT * 1000 < found - min(FIRST_RUN_SECS, 60 if name == "expire" else 600) * 1000 <= now + 1000
    nightly = jobs.scheduler.get_job("metrics").next_run_time
    assert (nightly.hour, nightly.minute, nightly.utcoffset()) == (2, 15, timedelta(0))


async def test_a_job_runs_again_and_again_by_itself(relay: RelayCore, jobs: Jobs) -> None:
    runs = 0
    done = asyncio.Event()

    def changed() -> None:
        nonlocal runs
        runs += not state(jobs, "expire").running
        if runs == 2:
            done.set()

    jobs.on_change = changed
    jobs.apply(OFF.model_copy(update={"expire": JobConfig(every_secs=1)}))
    async with asyncio.timeout(WAIT):
        await done.wait()
    last = state(jobs, "expire").last
    assert last is not None
    assert last.outcome == "ok"


async def test_a_job_that_hangs_does_not_keep_others_from_running(relay: RelayCore, jobs: Jobs) -> None:
    every_second = JobConfig(every_secs=1)
    seen: set[str] = set()
    jobs.on_change = lambda: seen.update(state.name for state in jobs.states() if state.last)
    async with relay.bus.opening:
        jobs.start("retention")
        jobs.apply(OFF.model_copy(update={"retention": every_second, "purge": every_second}))
        await until(lambda: "purge" in seen)
        assert state(jobs, "retention").running
    assert (await jobs.run("retention")).outcome == "ok"


async def test_a_reload_reschedules_only_what_changed_and_leaves_what_runs_alone(relay: RelayCore, jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    before = {found.name: found.next_run for found in jobs.states()}
    async with relay.bus.opening:
        jobs.start("retention")
        jobs.apply(
            JobsConfig(
                purge=JobConfig(enabled=False), index=JobConfig(every_secs=7), retention=JobConfig(every_secs=120)
            )
        )
        assert state(jobs, "retention").running
    assert (await jobs.run("retention")).outcome == "ok"
    after = {found.name: found.next_run for found in jobs.states()}
    assert [name for name in NAMES if before[name] != after[name]] == ["purge", "retention", "index"]
    assert after["purge"] is None
    assert (state(jobs, "purge").enabled, state(jobs, "index").schedule) == (False, "every 7 s")


@pytest.mark.parametrize(
    ("previous", "due"),
    [
        pytest.param(None, 60, id="first"),
        pytest.param(0, 60, id="on time"),
        pytest.param(-2, 58, id="a little late keeps its rhythm"),
        pytest.param(-60, 60, id="one missed"),
        pytest.param(-50 * 365 * 86_400, 60, id="the clock went on by decades"),
        pytest.param(3600, 60, id="the clock went back by an hour"),
    ],
)
def test_an_interval_never_lists_what_has_passed(previous: int | None, due: int) -> None:
    before = None if previous is None else NOW + timedelta(seconds=previous)
    assert Every(60).get_next_fire_time(before, NOW) == NOW + timedelta(seconds=due)


async def test_after_the_clock_went_on_a_job_runs_once(relay: RelayCore, jobs: Jobs, data_dir: Path) -> None:
    jobs.apply(OFF.model_copy(update={"expire": JobConfig(every_secs=60)}))
    jobs.scheduler.modify_job("expire", next_run_time=datetime.now(UTC) - timedelta(days=365 * 50))
    await until(lambda: (last := state(jobs, "expire").last) is not None and last.outcome == "ok")
    jobs.look_around()
    await asyncio.sleep(0)
    assert [event.status for event in await job_events(relay, data_dir)] == ["started", "ok"]


async def test_after_the_clock_went_back_no_job_waits_for_longer_than_its_period(jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    before = {found.name: found.next_run for found in jobs.states()}
    for name in ("expire", "retention", "metrics"):  # as it looks from an hour, or a year, ago
        jobs.scheduler.modify_job(
            name, next_run_time=datetime.now(UTC) + timedelta(hours=1 if name == "expire" else 9000)
        )
    jobs.look_around()
    for name in NAMES:
        if name in ("purge", "unread", "index"):
            assert state(jobs, name).next_run == before[name]
        else:
            scheduled = jobs.scheduler.get_job(name).next_run_time
            assert scheduled <= datetime.now(UTC) + timedelta(seconds=60 if name == "expire" else 86_400)

"""Jobs: each can be run, seen and set; a run that goes wrong stays its own affair."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from relay_core import NotFound, RelayConfig, RelayCore, RelayError
from relay_core.clock import SystemClock
from relay_core.config import JobConfig, JobsConfig, NightlyConfig
from relay_core.errors import Closed
from relay_core.messages.operator_views import JobArguments, JobProgress, JobRun, JobState
from relay_core.records.events import Event
from relay_core.testing import FakeClock
from relay_supervisor.jobs.nightly import RunOutput
from relay_supervisor.jobs.runner import JOBS, Jobs
from relay_supervisor.jobs.schedule import FIRST_RUN_SECS, Every
from tests.kit.bus import SENDER, A
from tests.kit.daemon import a_daemon
from tests.kit.events import EventReader
from tests.kit.processes import is_gone
from tests.kit.waiting import PATIENCE_SECS, until

PROGRAM = str(Path(__file__).with_name("child_program.py"))
SOON = 0.2
"""A timeout that is meant to pass."""
NAMES = ["expire", "purge", "unread", "retention", "index", "metrics"]
OFF = JobsConfig.model_validate({name: {"enabled": False} for name in NAMES})
"""Nothing runs by itself."""
NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)
SPAN = ["--since", "2020-01-30", "--until", "2020-02-01"]

pytestmark = pytest.mark.bus(RelayConfig(durability="os", jobs=OFF), endpoints=[A])


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
    await asyncio.wrap_future(relay.events.seal())
    paths = sorted((data_dir / "events").glob("date=*/*.jsonl"))
    return [event for path in paths for event in EventReader(path) if event.kind == "job"]


def has_ended(pid_file: Path) -> bool:
    return not pid_file.exists() or is_gone(int(pid_file.read_text()))


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
    async with Jobs(relay, clock, timeout=SOON) as jobs, relay.bus.lifecycle.lock:  # which it waits for
        run = await jobs.run("retention")
        assert (run.outcome, run.error) == ("timed_out", "took longer than 0.2 s")
        assert run.counts == {"traces": 0, "event_days": 0, "tmp_files": 0}
        assert (await jobs.run("expire")).outcome == "ok"


async def test_an_unknown_job_is_told_with_the_known_ones(jobs: Jobs) -> None:
    with pytest.raises(NotFound, match="no job sweep: choose one of expire, purge, unread, retention, index, metrics"):
        await jobs.run("sweep")
    with pytest.raises(NotFound):
        jobs.start("sweep")
    with pytest.raises(NotFound, match="not running"):
        await jobs.cancel("expire")


# One at a time


async def test_a_request_for_a_running_job_joins_it(relay: RelayCore, jobs: Jobs, data_dir: Path) -> None:
    changes: list[bool] = []
    jobs.on_change = lambda: changes.append(state(jobs, "retention").running)
    async with asyncio.TaskGroup() as group, relay.bus.lifecycle.lock:
        begun = jobs.start("retention")
        assert begun.outcome is None
        assert (state(jobs, "retention").running, state(jobs, "retention").last) == (True, begun)
        waiters = [group.create_task(jobs.run("retention")) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()  # a cancelled waiter does not stop the run
        await asyncio.sleep(0)
        assert state(jobs, "retention").running
    assert waiters[0].cancelled()
    assert waiters[1].result() is waiters[2].result()
    assert waiters[1].result().outcome == "ok"
    assert changes == [True, False]
    assert len(await job_events(relay, data_dir)) == 2


async def test_a_run_can_be_broken_off(relay: RelayCore, jobs: Jobs) -> None:
    async with asyncio.TaskGroup() as group, relay.bus.lifecycle.lock:
        waiter = group.create_task(jobs.run("retention"))
        await asyncio.sleep(0)
        assert (await jobs.cancel("retention")).outcome == "cancelled"
    assert waiter.result().outcome == "cancelled"
    assert not state(jobs, "retention").running


async def test_leaving_ends_what_runs(relay: RelayCore, clock: FakeClock, tmp_path: Path, data_dir: Path) -> None:
    async with asyncio.TaskGroup() as group, relay.bus.lifecycle.lock, Jobs(relay, clock) as jobs:
        jobs.apply(command("family", tmp_path / "own.pid", tmp_path / "grand.pid"))
        waiters = [group.create_task(jobs.run(name)) for name in ("metrics", "retention")]
        await until(lambda: (tmp_path / "own.pid").exists() and (tmp_path / "grand.pid").exists())
        jobs.start("expire")
    assert [waiter.result().outcome for waiter in waiters] == ["cancelled", "cancelled"]
    last = state(jobs, "expire").last
    assert last is not None
    assert last.outcome == "ok"  # upkeep gets a moment
    await until(lambda: has_ended(tmp_path / "own.pid") and has_ended(tmp_path / "grand.pid"))
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
    assert has_ended(tmp_path / "own.pid")


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
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    for name in ("spark", "pyspark"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    (installed / "spark" / "__main__.py").write_text("import sys; print(sys.argv[1:])")
    elsewhere.mkdir()
    (elsewhere / "spark.py").write_text("print('whose am I?')")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.syspath_prepend(installed)
    jobs.check_schedule()
    assert state(jobs, "metrics").problem is None
    for asked, options in ((None, []), (JobArguments(since="2020-01-30", until="2020-02-01"), SPAN)):
        run = await jobs.run("metrics", asked)
        assert run.outcome == "ok"
        assert run.output == f"{['nightly', '--data-dir', str(data_dir), *options]}\n"


@pytest.mark.parametrize("missing", ["spark", "pyspark"])
async def test_without_the_spark_part_its_job_says_how_to_get_it(
    jobs: Jobs, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    jobs.check_schedule()
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


# What the process says, and what it is asked for


def said(done: float, stage: str = "tables", **more: Any) -> str:
    return json.dumps({"progress": {"stage": stage, "done": done, **more}})


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Return a pipe: its reader waits until a writer has written."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


async def test_how_far_a_run_is_is_seen_while_it_runs_and_what_it_has_made_afterwards(jobs: Jobs, gate: Path) -> None:
    jobs.apply(command("say", gate, "hello", said(0.1, "ingest"), said(0.45, detail="latency")))
    result = {"reports": ["2026-11-15", "2026-11-16"], "events": 200_000, "badLines": 3, "tookMs": 14_000}
    async with asyncio.TaskGroup() as group:
        running = group.create_task(jobs.run("metrics"))
        await until(lambda: progress(jobs) == JobProgress(stage="tables", detail="latency", done=0.45))
        write(gate, json.dumps({"result": result}) + "\nbye\n")
    run = running.result()
    assert run.counts == {"reports": 2, "events": 200_000, "bad_lines": 3}
    assert (run.outcome, run.reports, run.progress) == ("ok", result["reports"], None)
    assert run.output == "hello\nbye\n"


def write(gate: Path, text: str) -> None:
    """Let a process go on that waits, or is about to."""
    gate.write_text(text)


def progress(jobs: Jobs) -> JobProgress | None:
    last = state(jobs, "metrics").last
    return last.progress if last is not None else None


@pytest.mark.parametrize(
    "line",
    [
        '{"progress": {"stage": "tables"}}',
        '{"progress": {"stage": "tables", "done": 1.5}}',
        '{"progress": {"stage": "tables", "done": NaN}}',
        '{"progress": {"stage": "tables", "done": "much"}}',
        '{"progress": {"stage": "", "done": 0}}',
        '{"progress": {"stage": "' + "x" * 61 + '", "done": 0}}',
        '{"progress": {"stage": 7, "done": 0}}',
        '{"progress": 0.5}',
        '{"progress": {"stage": "tables", "done": 0.5}',
        '{"progress": {"stage": "tables", "done": 0.5}, "more": 1}',
        ' {"progress": {"stage": "tables", "done": 0.5}}',
        '{"result": []}',
        '{"result": ' + "[" * 2000,
        '{"other": {}}',
        "{}",
        "",
    ],
)
def test_what_only_looks_like_progress_is_output(line: str) -> None:
    output = RunOutput()
    assert not output.parse(line)
    assert output == RunOutput()


def test_of_a_result_only_counts_and_days_are_taken() -> None:
    result = {
        "reports": ["2026-11-15", 7, "../../etc"],
        "events": True,
        "share": 0.5,
        "a b": 1,
        "less": -1,
        "more": 10**40,
    }
    output = RunOutput()
    assert output.parse(json.dumps({"result": {**result, "fine": 0} | {f"n{chr(97 + n)}": n for n in range(26)}}))
    assert output.reports == ["2026-11-15"]
    assert set(output.counts) <= {"reports", "fine"} | {f"n{chr(97 + n)}" for n in range(26)}
    assert len(output.counts) == 20


async def test_a_run_with_other_arguments_is_not_joined(jobs: Jobs, gate: Path) -> None:
    jobs.apply(command("say", gate, said(0.5)))
    asked = JobArguments(date="2020-01-31")
    async with asyncio.TaskGroup() as group:
        running = group.create_task(jobs.run("metrics", asked))
        await until(lambda: progress(jobs) is not None)
        for other in (None, JobArguments(today=True)):
            with pytest.raises(RelayError, match=r"running with --date 2020-01-31: .*relay jobs cancel") as caught:
                await jobs.run("metrics", other)
            assert caught.value.code == "job_busy"
        assert jobs.start("metrics", JobArguments(date="2020-01-31")).arguments == asked
        write(gate, "")
    assert running.result().arguments == asked
    jobs.apply(command("exit", 0))
    assert (await jobs.run("metrics", JobArguments())).arguments is None  # nothing in particular was asked for


async def test_a_run_of_the_process_can_be_broken_off(jobs: Jobs, tmp_path: Path) -> None:
    pids = [tmp_path / "own.pid", tmp_path / "grand.pid"]
    jobs.apply(command("family", *pids))
    jobs.start("metrics")
    await until(lambda: all(path.exists() for path in pids))
    assert (await jobs.cancel("metrics")).outcome == "cancelled"
    await until(lambda: all(map(has_ended, pids)))
    with pytest.raises(NotFound, match="not running"):
        await jobs.cancel("metrics")


async def test_a_command_of_the_operators_finds_the_days_in_its_environment(jobs: Jobs) -> None:
    line = (sys.executable, "-c", "import os; print(os.environ['RELAY_JOB_OPTIONS'])")
    jobs.apply(OFF.model_copy(update={"metrics": NightlyConfig(enabled=False, command=line)}))
    assert (await jobs.run("metrics")).output == "\n"
    run = await jobs.run("metrics", JobArguments(since="2020-01-30", today=True))
    assert run.output == "--since 2020-01-30 --today\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"date": "2026-1-3"}, "pattern"),
        ({"date": "2026-02-30"}, "2026-02-30 is not a date"),
        ({"since": "2026-02-02", "until": "2026-02-01"}, r"since \(2026-02-02\) is after until \(2026-02-01\)"),
        ({"until": "2026-02-01"}, "until needs since"),
        ({"date": "2026-02-01", "since": "2026-02-01"}, "exclude each other"),
        ({"date": "2026-02-01", "backfill": True}, "exclude each other"),
        ({"date": "2026-02-01", "today": True}, "which name the last day"),
        ({"since": "2026-02-01", "until": "2026-02-01", "today": True}, "which name the last day"),
        ({"day": "2026-02-01"}, "Extra inputs"),
        ({"backfill": 1}, "valid boolean"),
    ],
)
def test_contradictory_days_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        JobArguments.model_validate(arguments)


async def test_days_that_have_not_come_and_jobs_without_days_are_told(jobs: Jobs, clock: FakeClock) -> None:
    jobs.apply(command("exit", 0))
    today = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date()
    tomorrow = str(today + timedelta(days=1))
    for asked in (
        JobArguments(date=tomorrow),
        JobArguments(since=tomorrow),
        JobArguments(since=str(today), until=tomorrow),
    ):
        with pytest.raises(RelayError, match=f"{tomorrow} is in the future: today is {today}") as caught:
            await jobs.run("metrics", asked)
        assert caught.value.code == "invalid_params"
    assert (await jobs.run("metrics", JobArguments(date=str(today)))).outcome == "ok"
    with pytest.raises(RelayError, match="the job expire takes no arguments"):
        await jobs.run("expire", JobArguments(today=True))


async def test_a_supervisor_that_is_killed_takes_the_process_with_it(tmp_path: Path) -> None:
    pids = [tmp_path / "own.pid", tmp_path / "grand.pid"]
    line = [sys.executable, PROGRAM, "watchful", *map(str, pids)]
    async with a_daemon(tmp_path, {"jobs": {"metrics": {"command": line}}}) as daemon:
        async with daemon.client() as client:
            await client.run_job("metrics", wait=False)
            await until(lambda: all(path.exists() for path in pids))
        assert not any(map(has_ended, pids))
        os.kill(daemon.pid, signal.SIGKILL)  # only the daemon: the child has another group
        await until(lambda: all(map(has_ended, pids)))


# Nights that were missed


class Nights:
    """Jobs whose nightly process does nothing but tell that it ran, at a time that can be chosen."""

    def __init__(self, jobs: Jobs, clock: FakeClock, data_dir: Path) -> None:
        self.jobs, self.clock, self.data_dir = jobs, clock, data_dir
        self.runs = 0
        jobs.on_change = self._changed

    def _changed(self) -> None:
        self.runs += state(self.jobs, "metrics").running

    def go_to(self, hour: int, minute: int = 0) -> None:
        """Set the clock to a time of the next day."""
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
        then = now.replace(hour=hour, minute=minute, second=0, microsecond=0) + timedelta(days=1)
        self.clock.advance((then - now).total_seconds())

    def day(self, before: int) -> str:
        """Return a day so many days ago."""
        return str(datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).date() - timedelta(days=before))

    def has_events(self, before: int = 1) -> None:
        (self.data_dir / "events" / f"date={self.day(before)}").mkdir(parents=True, exist_ok=True)

    def has_report(self, before: int = 1, *, made: int = 0, within: Path | None = None) -> None:
        """Make a report of a day, as if `made` days ago."""
        path = (within or self.data_dir / "reports") / f"date={self.day(before)}" / "report.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        at = self.clock.now_ms() / 1000 - made * 86_400
        os.utime(path, (at, at))

    async def look(self) -> int:
        """Return how many runs a look at the clock has begun."""
        before = self.runs
        self.jobs.check_schedule()
        await until(lambda: not state(self.jobs, "metrics").running)
        return self.runs - before

    def set(self, **settings: Any) -> None:
        line = (sys.executable, "-c", "")
        self.jobs.apply(OFF.model_copy(update={"metrics": NightlyConfig(**{"command": line, **settings})}))


@pytest.fixture
def nights(jobs: Jobs, clock: FakeClock, data_dir: Path) -> Nights:
    nights = Nights(jobs, clock, data_dir)
    nights.set()
    return nights


async def test_a_night_that_was_missed_is_made_up_for_once_some_minutes_after_the_start(
    relay: RelayCore, clock: FakeClock, data_dir: Path
) -> None:
    async with Jobs(relay, clock) as first:
        Nights(first, clock, data_dir).go_to(9)
    async with Jobs(relay, clock) as jobs:
        nights = Nights(jobs, clock, data_dir)
        nights.set()
        nights.has_events()
        clock.advance(FIRST_RUN_SECS - 1)
        assert await nights.look() == 0
        clock.advance(1)
        assert await nights.look() == 1
        assert await nights.look() == 0  # though there is still no report: it may be that none can be made
        nights.go_to(9)
        nights.has_events()
        assert await nights.look() == 1  # another night


@pytest.mark.parametrize(
    ("at", "hour", "minute", "before", "runs"),
    [
        pytest.param("02:15", 2, 15, 1, 1, id="at its time"),
        pytest.param("02:15", 2, 14, 1, 0, id="before its time"),
        pytest.param("02:15", 2, 14, 2, 1, id="the night before"),
        pytest.param("23:00", 9, 0, 1, 0, id="a late hour, not yet"),
        pytest.param("23:00", 9, 0, 2, 1, id="a late hour, last night"),
    ],
)
async def test_a_night_is_missed_when_its_time_has_passed(
    nights: Nights, at: str, hour: int, minute: int, before: int, runs: int
) -> None:
    nights.set(at=at)
    nights.go_to(hour, minute)
    nights.has_events(before)
    assert await nights.look() == runs


async def test_a_night_is_not_missed_without_events_or_with_a_whole_report(
    nights: Nights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.go_to(9)
    nights.go_to(9)  # of the first day there are events: the bus was started
    assert await nights.look() == 0
    nights.has_events()
    nights.has_report()
    assert await nights.look() == 0
    nights.set(output=f"file://{tmp_path}/out")
    nights.has_report(within=tmp_path / "out")
    assert await nights.look() == 0
    nights.set(output="s3a://bucket/out")  # stored elsewhere
    assert await nights.look() == 0
    nights.set(enabled=False)
    nights.has_report(made=1)
    assert await nights.look() == 0
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    nights.set(command=None)
    assert await nights.look() == 0
    nights.set()
    assert await nights.look() == 1  # it was made while its day was not over


async def test_what_was_tried_is_not_made_up_for(nights: Nights) -> None:
    nights.go_to(9)
    nights.has_events()
    await nights.jobs.run("metrics", JobArguments(date="2020-01-31"))
    assert await nights.look() == 1  # that was another day
    nights.go_to(9)
    nights.has_events()
    await nights.jobs.run("metrics", JobArguments(today=True))
    assert await nights.look() == 0


async def test_a_night_that_fell_into_another_run_is_made_up_for(
    nights: Nights, gate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nights.go_to(2, 15)
    nights.has_events()
    nights.set(command=(sys.executable, PROGRAM, "say", str(gate), said(0.5)))
    async with asyncio.TaskGroup() as group:
        group.create_task(nights.jobs.run("metrics", JobArguments(date="2020-01-31")))
        await until(lambda: progress(nights.jobs) is not None)
        nights.jobs.scheduler.modify_job("metrics", next_run_time=datetime.now(UTC))
        await until(lambda: nights.jobs.scheduler.get_job("metrics").next_run_time > datetime.now(UTC))
        nights.set()
        write(gate, "")
    assert not caplog.records
    assert await nights.look() == 1


# The schedule


async def test_the_schedule_as_it_comes(jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    now = SystemClock().now_ms()
    assert {name: state(jobs, name).schedule for name in NAMES} == {
        "expire": "every 1 min",
        "purge": "every 1 h",
        "unread": "every 1 h",
        "retention": "every 1 d",
        "index": "every 10 min",
        "metrics": "daily at 02:15 UTC",
    }
    for name in NAMES[:-1]:
        found = state(jobs, name).next_run
        assert found is not None
        assert (
            now - PATIENCE_SECS * 1000
            < found - min(FIRST_RUN_SECS, 60 if name == "expire" else 600) * 1000
            <= now + 1000
        )
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
    async with asyncio.timeout(PATIENCE_SECS):
        await done.wait()
    last = state(jobs, "expire").last
    assert last is not None
    assert last.outcome == "ok"


async def test_a_job_that_hangs_does_not_keep_others_from_running(relay: RelayCore, jobs: Jobs) -> None:
    every_second = JobConfig(every_secs=1)
    seen: set[str] = set()
    jobs.on_change = lambda: seen.update(state.name for state in jobs.states() if state.last)
    async with relay.bus.lifecycle.lock:
        jobs.start("retention")
        jobs.apply(OFF.model_copy(update={"retention": every_second, "purge": every_second}))
        await until(lambda: "purge" in seen)
        assert state(jobs, "retention").running
    assert (await jobs.run("retention")).outcome == "ok"


async def test_a_reload_reschedules_only_what_changed_and_leaves_what_runs_alone(relay: RelayCore, jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    before = {found.name: found.next_run for found in jobs.states()}
    async with relay.bus.lifecycle.lock:
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
    jobs.check_schedule()
    await asyncio.sleep(0)
    assert [event.status for event in await job_events(relay, data_dir)] == ["started", "ok"]


async def test_after_the_clock_went_back_no_job_waits_for_longer_than_its_period(jobs: Jobs) -> None:
    jobs.apply(JobsConfig())
    before = {found.name: found.next_run for found in jobs.states()}
    for name in ("expire", "retention", "metrics"):  # as it looks from an hour, or a year, ago
        jobs.scheduler.modify_job(
            name, next_run_time=datetime.now(UTC) + timedelta(hours=1 if name == "expire" else 9000)
        )
    jobs.check_schedule()
    for name in NAMES:
        if name in ("purge", "unread", "index"):
            assert state(jobs, name).next_run == before[name]
        else:
            scheduled = jobs.scheduler.get_job(name).next_run_time
            assert scheduled <= datetime.now(UTC) + timedelta(seconds=60 if name == "expire" else 86_400)

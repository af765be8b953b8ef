"""The jobs screen: what is shown of each, and a run that is followed to its end, wherever its operator goes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from relay_core.config import RelayConfig, merge_config
from relay_core.messages.operator_views import JobArguments
from relay_core.testing import FakeClock
from relay_supervisor.supervisor import Supervisor
from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import a_dashboard

WAITS = "import sys; print('begun'); print(open(sys.argv[1]).read(), end=''); sys.exit(int(sys.argv[2]))"


def nightly(*command: object) -> dict[str, Any]:
    """Return a configuration whose nightly job is a program of ours."""
    return {
        "durability": "os",
        "jobs": {"metrics": {"enabled": False, "command": [sys.executable, "-c", *map(str, command)]}},
    }


def gate(path: Path) -> Path:
    """Make a pipe: whoever reads it waits until somebody has written."""
    os.mkfifo(path)
    return path


async def test_a_job_is_run_now_and_its_outcome_shown(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor:
        async with a_dashboard(supervisor) as tui:
            await tui.press("J")
            await tui.until(r"expire +every 1 min +in \d+s +– not run yet")
            await tui.until("Dead-letter messages whose TTL has passed")
            await tui.press("N")
            await tui.until(r"expire finished in .*: 0 expired")
            await tui.until(r"expire +every 1 min +in \d+s +✓ ok")
            await tui.until("counted +0 expired")
        async with a_client(supervisor) as client:
            (job,) = [job for job in await client.jobs() if job.name == "expire"]
            assert job.last is not None
            assert job.last.outcome == "ok"


async def test_a_job_that_cannot_run_says_why_and_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it was not installed
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics +daily at 02:15 UTC +✗ cannot run")
        await tui.until(r"✗ the Spark part is not installed: run pip install 'relay-bus\[spark\]'")
        await tui.press("N")
        await tui.until("Run the job now: the job metrics cannot run")


async def test_the_end_of_a_run_is_told_on_whichever_screen_the_operator_is(tmp_path: Path) -> None:
    pipe = gate(tmp_path / "gate")
    async with a_supervisor(tmp_path / "data", nightly(WAITS, pipe, 3)) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics .*– manual only")
        await tui.press("N")
        await tui.until(r"◐ running \d+s")
        await tui.press("N")
        await tui.until("metrics is already running: started .* ago")

        await tui.press("2")
        await tui.until("no deliveries yet")
        pipe.write_text("a \x1b[2Jlast [red]word[/red]\n")
        await tui.until("metrics failed: .*exit")

        await tui.press("J")
        await tui.until("✗ failed")
        await tui.until("│ begun")
        await tui.until(r"│ a ␛\[2Jlast \[red\]word\[/red\]")


async def test_a_run_whose_supervisor_has_been_started_anew_is_not_waited_for(tmp_path: Path) -> None:
    config = merge_config(RelayConfig(), nightly(WAITS, gate(tmp_path / "gate"), 0))
    data_dir, socket = tmp_path / "data", tmp_path / "s"
    first = await Supervisor(data_dir, socket, config=config).__aenter__()
    async with a_dashboard(first) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("N")
        await tui.until("metrics is running")  # from here on it is followed
        await tui.until("◐ running")
        async with asyncio.TaskGroup() as group:
            # It breaks the run off as it stops, which the dashboard may be told in time, for a few seconds.
            told = group.create_task(tui.until("metrics: the supervisor was restarted|metrics was cancelled"))
            await first.__aexit__(None, None, None)
            async with Supervisor(data_dir, socket, config=config):
                await told


async def test_a_run_whose_supervisor_stays_away_is_not_waited_for(tmp_path: Path) -> None:
    clock = FakeClock()
    config = merge_config(RelayConfig(), nightly(WAITS, gate(tmp_path / "gate"), 0))
    supervisor = await Supervisor(tmp_path / "data", tmp_path / "s", config=config).__aenter__()
    async with a_dashboard(supervisor, clock=clock) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("N")
        await tui.until("metrics is running")  # from here on it is followed
        await tui.until("◐ running")
        await supervisor.__aexit__(None, None, None)
        await tui.until("STALE")
        clock.advance(120)
        await tui.until("metrics: the supervisor does not respond")


async def test_another_job_is_run_while_one_is_under_way(tmp_path: Path) -> None:
    pipe = gate(tmp_path / "gate")
    async with a_supervisor(tmp_path / "data", nightly(WAITS, pipe, 0)) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("N")
        await tui.until("metrics is running")  # from here on it is followed
        await tui.until("◐ running")
        await tui.press("g", "N")
        await tui.until("expire finished")
        assert "◐ running" in tui.text()
        pipe.write_text("")
        await tui.until("metrics finished")


async def test_a_long_output_is_scrolled_after_tab(tmp_path: Path) -> None:
    program = "print(*range(300), sep=chr(10))"
    async with a_supervisor(tmp_path, nightly(program)) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("N")
        await tui.until("│ 0\n")
        assert "│ 299" not in tui.text()
        await tui.press("tab", "G")
        await tui.until("│ 299")


async def test_a_job_is_run_by_its_name_from_any_screen(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("colon")
        await tui.type("run-job index")
        await tui.press("enter")
        await tui.until("index finished")
        await tui.press("colon")
        await tui.type("run-job tea")
        await tui.press("enter")
        await tui.until("there is no job tea")


PROGRESS = (
    "import sys; print('begun'); print(sys.argv[2], flush=True); print(open(sys.argv[1]).read(), end='', flush=True)"
)
AT_45 = '{"progress": {"stage": "tables", "detail": "lat\\u001bency", "done": 0.45}}'
RESULT = '{"result": {"reports": ["2026-11-15"], "events": 1200, "badLines": 0}}'


async def test_how_far_a_run_is_is_shown_as_a_share_and_a_bar(tmp_path: Path) -> None:
    pipe = gate(tmp_path / "gate")
    config = nightly(PROGRESS, pipe, AT_45)
    async with a_supervisor(tmp_path / "data", config) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("N")
        await tui.until(r"metrics .*◐ 45% \d+s")
        await tui.until(r"progress +█{10}▊·{13} 45%  tables: lat␛ency")
        await tui.press("R")
        await tui.until(r"nightly +◐ running \d+s +█{10}▊·{13} 45%  tables: lat␛ency")
        await tui.resize(80, 24)
        await tui.until(r"nightly +◐ running \d+s +█+.?·+ 45%  tables: lat␛ency")
        pipe.write_text(RESULT + "\n")
        await tui.until("metrics finished")
        await tui.press("J")
        await tui.until("counted +1 reports, 1,200 events, 0 bad_lines")
        assert "progress" not in tui.text()


@pytest.mark.parametrize("screen", ["J", "R"])
async def test_a_run_is_broken_off_after_a_question(tmp_path: Path, screen: str) -> None:
    config = nightly(PROGRESS, gate(tmp_path / "gate"), AT_45)
    async with a_supervisor(tmp_path / "data", config) as supervisor, a_dashboard(supervisor) as tui:
        await tui.press("J", "G")
        await tui.until("metrics")
        await tui.press("C")
        await tui.until("metrics is not running")
        await tui.press("N")
        await tui.until("◐ 45%")
        await tui.press(screen, "C")
        await tui.until("Cancel the run of metrics?")
        await tui.until("Progress: 45%, tables: lat␛ency")
        await tui.press("escape")
        await tui.until(lambda: "Break off" not in tui.text())
        assert next(job for job in supervisor.context.jobs.states() if job.name == "metrics").running
        await tui.press("C")
        await tui.until("Cancel the run of metrics?")
        await tui.confirm("cancel")
        await tui.until("metrics was cancelled after")
        await tui.until("○ cancelled")


async def test_a_run_is_broken_off_by_its_name_from_any_screen(tmp_path: Path) -> None:
    config = nightly(PROGRESS, gate(tmp_path / "gate"), AT_45)
    async with a_supervisor(tmp_path / "data", config) as supervisor, a_dashboard(supervisor) as tui:
        supervisor.context.jobs.start("metrics", JobArguments(since="2020-01-30", until="2020-01-31"))
        await tui.press("J", "G")
        await tui.until("arguments +--since 2020-01-30 --until 2020-01-31")
        await tui.press("2", "colon")
        await tui.type("cancel-job metrics")
        await tui.press("enter")
        await tui.until("Cancel the run of metrics?")
        await tui.confirm("cancel")
        await tui.until(lambda: not any(job.running for job in supervisor.context.jobs.states()))
        await tui.press("colon")
        await tui.type("cancel-job tea")
        await tui.press("enter")
        await tui.until("there is no job tea")


async def test_who_may_only_read_runs_nothing(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, read_only=True) as tui:
        await tui.press("J")
        await tui.until("expire")
        await tui.press("N")
        await tui.press("colon")
        await tui.type("run-job index")
        await tui.press("enter")
        await tui.until("there is no command 'run-job'")
        assert all(job.last is None for job in supervisor.context.jobs.states())

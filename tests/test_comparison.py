"""`python -m benchmarks compare` measures installed contestants, names the missing ones, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from benchmarks.compare.programme import CLASSES, CONTESTANTS, METRICS, entry
from benchmarks.compare.results import results
from benchmarks.compare.table import table
from tests.kit import ROOT
from tests.kit.waiting import wait_until

COMPARE = (sys.executable, "-m", "benchmarks", "compare")
TINY = ("--quick", "--rounds", "1", "--messages", "20")


def compare(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMPARE, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment)


def started_in(directory: Path) -> dict[int, str]:
    """Return the commands of all processes that name a directory."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(directory) in command:
            found[int(process.name)] = command
    return found


@contextmanager
def under_way(directory: Path, *names: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a comparison that would take hours, up to its first measurement."""
    command = [*COMPARE, *names, "--messages", "1000000", "--dir", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "power: one_by_one, round 1 of 5\n"
            yield process, process.stderr
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_contestant_that_is_installed_has_a_figure_for_all_it_can_do(tmp_path: Path) -> None:
    done = compare(*TINY, "--json", "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    there = [name for name in CONTESTANTS if entry(name).missing() is None]
    assert [(line["bench"], line["contestant"], line["metric"], line["unit"]) for line in lines] == [
        (f"compare_{durability}", name, key, metric.unit)
        for durability in CLASSES
        for name in there
        if durability not in entry(name).out_of_class
        for key, metric in METRICS.items()
        if metric.task not in entry(name).cannot
    ]
    for line in lines:
        assert line["value"] > 0
        assert line.keys() >= {"ratio_to_floor", "ratio_to_relay", "spread", "rounds"}
    assert list(tmp_path.iterdir()) == []
    assert not started_in(tmp_path)


def test_who_is_not_installed_is_said_to_be_left_out(tmp_path: Path) -> None:
    done = compare("mailbox", "redis", *TINY, "--dir", tmp_path, PATH="/nowhere")
    assert done.returncode == 0, done.stderr
    assert "Left out: Redis streams is not installed (install the program redis-server)." in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("| `mailbox.Maildir`")]
    assert len(rows) == 2 * len(CLASSES)
    assert not any("Redis" in row for row in done.stdout.splitlines() if row.startswith("|"))


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda by: by.name)
def test_no_server_outlives_the_run(tmp_path: Path, by: signal.Signals) -> None:
    with under_way(tmp_path, "relay-socket", "nats") as (process, says):
        servers = [
            command for command in started_in(tmp_path).values() if "--data-dir" in command or "nats.conf" in command
        ]
        assert len(servers) == 2
        wait_until(lambda: any(tmp_path.glob("run-*/*/mailboxes/*/new/*")))  # its worker has no ear for the runner now
        process.send_signal(by)
        assert says.read() == ""
    wait_until(lambda: not started_in(tmp_path))
    if by is not signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_no_server_outlives_its_worker(tmp_path: Path) -> None:
    with under_way(tmp_path, "nats") as (process, says):
        (worker,) = (pid for pid, command in started_in(tmp_path).items() if "compare.worker" in command)
        os.kill(worker, signal.SIGKILL)
        assert says.read() == "nats ended early, with -9: its error is above\n"
        assert process.wait() == 1
    wait_until(lambda: not started_in(tmp_path))


def test_ratios_are_made_within_a_round_and_say_how_many_times_as_good() -> None:
    found = results(
        "power",
        {
            "floor": {"publish_1": [10, 20, 100]},
            "relay": {"publish_1": [20, 40, 50], "latency_p50": [1, 1, 1]},
            "relay-socket": {"publish_1": [5, 10, 15], "memory_idle": [60]},
            "persist-queue": {"latency_p50": [2, 4, 8]},
            "nats": {"publish_1": [10, 30, 30], "memory_idle": [20]},
        },
    )
    assert {
        (result.contestant, result.metric): (result.value, result.to_floor, result.to_relay) for result in found
    } == {
        ("floor", "publish_1"): (20, 1, 0.5),
        ("relay", "publish_1"): (40, 2, 1),
        ("relay", "latency_p50"): (1, None, 1),
        ("relay-socket", "publish_1"): (10, 0.5, 1),
        ("relay-socket", "memory_idle"): (60, None, 1),
        ("persist-queue", "latency_p50"): (4, None, 0.25),
        ("nats", "publish_1"): (30, 1, 2),
        ("nats", "memory_idle"): (20, None, 3),
    }


def test_what_one_cannot_do_is_a_dash_with_a_reason() -> None:
    names = ["relay", "mailbox", "persist-queue-files"]
    relay = {key: [1.0, 2.0, 3.0] for key in METRICS}
    mailbox = {key: [2.0, 4.0, 6.0] for key in METRICS if METRICS[key].task not in entry("mailbox").cannot}
    lines = table("power", names, results("power", {"relay": relay, "mailbox": mailbox})).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[3].split(" | ")[1:4] == ["**4** (2 – 6)", "**4** (2 – 6)", "– <sup>2</sup>"]
    assert lines[lines.index(rows[4]) + 3].startswith(f"2. {entry('mailbox').cannot['fan_out']}")
    assert rows[4].count("– <sup>") == len(METRICS)
    assert rows[-2].split(" | ")[1:4] == ["– / 2 ×", "– / 2 ×", "–"]


def test_wrong_names_are_explained() -> None:
    done = compare("rabbit")
    assert done.returncode == 2
    assert "no contestant rabbit: choose from floor, relay," in done.stderr

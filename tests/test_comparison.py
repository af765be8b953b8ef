"""`python -m benchmarks compare` measures installed contestants, names the missing ones, and leaves nothing running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, get_args

import pytest

from benchmarks.compare.bare_client import BareClient, Pattern
from benchmarks.compare.contestant import IN_FLIGHT
from benchmarks.compare.goals import GOALS, goal_table, goals
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
    every = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [line for line in every if line["bench"] != "compare_goals"]
    reached = every[len(lines) :]
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
    measured = [goal.title for goal in GOALS if {goal.relay, goal.other} <= {*there}]
    assert [goal["metric"] for goal in reached[: len(measured)]] == measured
    assert [goal["unit"] for goal in reached[len(measured) :]] == ["x", "1/s"]
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
    assert rows[3].split(" | ")[1:5] == ["**4** (2 – 6)", "**4** (2 – 6)", "– <sup>2</sup>", "– <sup>3</sup>"]
    assert lines[lines.index(rows[4]) + 4].startswith(f"3. {entry('mailbox').cannot['fan_out']}")
    assert rows[4].count("– <sup>") == len(METRICS)
    assert rows[-2].split(" | ")[1:5] == ["– / 2 ×", "– / 2 ×", "–", "–"]


def test_a_goal_is_a_ratio_within_rounds_and_is_met_missed_or_not_measured() -> None:
    found = results("power", {"relay-socket": {"publish_1": [12, 30, 9], "latency_p50": [3, 3, 3]}})
    found += results("power", {"redis": {"publish_1": [10, 20, 10], "latency_p50": [2, 2, 2]}})
    found += results("kill", {"relay-socket": {"publish_64": [1]}, "redis": {"publish_64": [1]}})
    lines = list(goals(found, None))
    assert [(line["value"], line["goal"], line["at"], line["met"]) for line in lines] == [
        (1.2, 1.1, "least", True),
        (1.5, 1, "most", False),
    ]
    assert goal_table(lines).splitlines()[-2:] == [
        "| power, socket one by one / Redis | 1.2 x | ≥ 1.1 | met |",
        "| power, socket publish → handler p50 / Redis | 1.5 x | ≤ 1 | missed |",
    ]


@pytest.mark.parametrize("pattern", get_args(Pattern))
def test_a_bare_client_keeps_64_in_flight_and_refuses_a_wrong_answer(tmp_path: Path, pattern: Pattern) -> None:
    most = 0

    def serve() -> None:
        """Answer in halves, so that a read may end within an answer; the 200th is wrong."""
        nonlocal most
        connection, _ = listener.accept()
        with connection:
            answered = 0
            while data := connection.recv(1 << 16):
                most = max(most, asked := data.count(b"\n"))
                for _ in range(asked):
                    answered += 1
                    connection.sendall(b"1\n")
                    connection.sendall(b"no\n" if answered == 200 else b"ok\n")

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        served = pool.submit(serve)
        with BareClient(tmp_path / "s", rb"1\nok\n", lines=2) as client:
            client.exchange([b"ask\n"] * 150, pattern)
            with pytest.raises(RuntimeError, match="unexpected answers"):
                client.exchange([b"ask\n"] * 50, pattern)
        served.result()
    assert most == IN_FLIGHT


def test_wrong_names_are_explained() -> None:
    done = compare("rabbit")
    assert done.returncode == 2
    assert "no contestant rabbit: choose from floor, relay," in done.stderr

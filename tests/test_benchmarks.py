"""The benchmarks run and print what CONTRACT.md says. No test asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import ROOT

TINY = ("--quick", "--rounds", "1", "--messages", "20")


def benchmarks(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def test_every_goal_is_a_case() -> None:
    assert benchmarks("--quick", "--list").stdout.split() == [
        "publish_os_1",
        "publish_os_64",
        "publish_fsync_1",
        "publish_fsync_64",
        "broadcast_os_10",
        "publish_backlog",
        "publish_many_endpoints",
        "start_stored",
        "memory_stored",
        "handle_fsync_64",
        "handle_os_64",
        "latency_os_200",
        "pool_4",
        "socket_os_64",
        "socket_batch_64",
        "socket_os_1",
        "socket_clients_200",
        "socket_idle",
        "socket_latency_200",
        *("bystander_close", "bystander_lists", "bystander_broadcast"),
        "adapter_seam",
        "webhook_in",
        "webhook_out",
        "nats_out",
        "hook",
        "mcp_start",
        *("search_dead_letters", "search_traces"),
        *("tui_keys", "tui_cpu", "tui_output", "tui_start", "tui_dead_letters", "tui_lag"),
        *("spark_start", "spark_night", "spark_day"),
        "first_run",
    ]


def test_results_are_json_lines_and_nothing_is_left_behind(tmp_path: Path) -> None:
    names = ("publish_os_64", "broadcast_os_10", "handle_os_64", "latency_os_200")
    done = benchmarks(*names, *TINY, "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(result["bench"], result["metric"], result["unit"]) for result in results] == [
        ("publish_os_64", "ratio_to_floor", "x"),
        ("broadcast_os_10", "ratio_to_floor", "x"),
        ("handle_os_64", "ratio_to_floor", "x"),
        ("latency_os_200", "p50", "ms"),
        ("latency_os_200", "p99", "ms"),
    ]
    for result in results:
        assert result["value"] > 0
        assert result["at"] in ("least", "most")
        assert result.keys() >= {"goal", "met", "spread", "rounds"}
        assert len(result["rounds"]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_for_people(tmp_path: Path) -> None:
    done = benchmarks("publish_fsync_64", *TINY, "--table", "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    head, rule, row = done.stdout.splitlines()
    assert head.count("|") == rule.count("|") == row.count("|")
    assert row.startswith("| publish_fsync_64 | ratio_to_floor | ")


@pytest.mark.parametrize("arguments", [("publish_os_2",), ("--rounds", "0")], ids=["unknown case", "no rounds"])
def test_wrong_usage_is_explained(arguments: tuple[str, ...]) -> None:
    done = benchmarks(*arguments)
    assert done.returncode == 2
    assert arguments[-1] in done.stderr

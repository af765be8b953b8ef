"""The state without a dashboard: the real command in a process of its own, on a real supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from relay_supervisor.supervisor import Supervisor
from relay_tui.once import spoken
from tests.kit.supervisor import a_client, a_supervisor

FLAKY = "relay.agent.flaky"
HOSTILE = "it \x1b[31mbroke\x07\u202e badly\n[bold]and[/bold]"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


async def relay_tui(*arguments: str | Path, python: tuple[str, ...] = ("-m", "relay_tui")) -> Ran:
    """Run the command to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *python,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


def where(supervisor: Supervisor) -> tuple[str | Path, ...]:
    return ("--socket", supervisor.socket, "--data-dir", supervisor.context.relay.data_dir.path)


async def in_trouble(supervisor: Supervisor) -> None:
    """Give a supervisor mail that waits, a breaker that is open and a dead letter whose reason a stranger wrote."""
    async with a_client(supervisor) as client:
        await client.register_endpoint(FLAKY)
        for number in range(3):
            await client.publish(FLAKY, number, sender="relay.agent.a")
        (taken,) = await client.claim(FLAKY)
        await client.fail(FLAKY, taken.id, HOSTILE)
        await client.force_breaker(FLAKY, "OPEN", "maintenance")


async def test_as_json_it_is_the_whole_picture_in_one_document(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor:
        await in_trouble(supervisor)
        ran = await relay_tui("--once", "--json", *where(supervisor))
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["full"] is True
    assert document["server"]["pid"] == os.getpid()
    assert {"at", "throughput", "mailboxes", "senders", "breakers", "adapters", "deadLetters", "jobs"} <= set(document)
    assert [box["depth"] for box in document["mailboxes"].values() if box["subject"] == FLAKY] == [2]
    assert [group["sampleReason"] for group in document["deadLetters"].values()] == [HOSTILE]
    assert {"severity": "error", "text": f"{FLAKY}: its breaker is forced open", "screen": "breakers"} in document[
        "alerts"
    ]
    assert ran.out.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", ran.out)


async def test_in_words_what_is_wrong_comes_first_and_nothing_is_drawn(tmp_path: Path) -> None:
    narrow = {"durability": "os", "reliability": {"backpressure": {"maxMailboxSize": 4, "pressureWarningAt": 0.5}}}
    async with a_supervisor(tmp_path, narrow) as supervisor:
        await in_trouble(supervisor)
        ran = await relay_tui("--plain", *where(supervisor))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "Relay needs attention: 1 problem, 1 warning."
    assert lines[1] == f"Problem: {FLAKY}: its breaker is forced open"
    assert lines[2] == f"Warning: {FLAKY} is 50 percent full"
    assert f"Breaker of {FLAKY}: forced open, 0 failures in a row." in lines
    assert [line for line in lines if line.startswith(f"Mailbox {FLAKY}: 2 waiting, 50 percent full, the oldest for ")]
    assert "Dead letters: 1." in lines
    assert [line for line in lines if line.startswith("Job expire: runs in ")]
    assert [line for line in lines if line.startswith("Job metrics: runs in ")]
    told = [line for line in lines if not line.startswith("Dead letters for")]
    assert re.fullmatch(r"[A-Za-z0-9 .,:;'()/_\[\]=-]+", " ".join(told))
    (foreign,) = [line for line in lines if line.startswith("Dead letters for")]
    assert "broke" in foreign
    assert foreign.isprintable()


async def test_in_words_a_calm_bus_is_called_calm(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor:
        ran = await relay_tui("--once", *where(supervisor))
    assert ran.out.startswith("Relay is healthy: nothing needs attention.\nSupervisor: version ")


async def test_without_a_supervisor_it_says_so_and_exits_with_3(tmp_path: Path) -> None:
    ran = await relay_tui("--once", "--json", "--socket", tmp_path / "s", "--data-dir", tmp_path)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith(f"relay-tui: cannot reach {tmp_path / 's'}")
    assert ran.err.count("\n") == 1


async def test_the_supervisor_of_another_directory_is_not_taken_for_ours(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path / "ours") as supervisor:
        ran = await relay_tui("--once", "--socket", supervisor.socket, "--data-dir", tmp_path)
    assert (ran.code, ran.out) == (3, "")
    assert "serves" in ran.err


async def test_a_reader_that_goes_away_is_not_worth_a_word(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor:
        # The pipe is closed before anything is written to it.
        script = '"$@" | true; wait'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -o pipefail; {script}", "bash", sys.executable, "-m", "relay_tui", "--plain"),
            *map(str, where(supervisor)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert await process.communicate() == (b"", b"")


_EVERY_WAY_BUT_A_DASHBOARD = """
import sys
from relay_tui.__main__ import main
for line in ("--help", "--nonsense", "--json", "--once", "--once --json", "--plain", ""):
    try:
        code = main([*line.split(), "--socket", sys.argv[1]])
    except SystemExit as left:
        code = left.code
    heavy = sorted({"textual", "rich"} & set(sys.modules))
    print("ran", line, code or 0, *heavy)
"""


async def test_textual_is_imported_for_a_dashboard_only(tmp_path: Path) -> None:
    ran = await relay_tui(tmp_path / "s", python=("-c", _EVERY_WAY_BUT_A_DASHBOARD))
    assert [line for line in ran.out.splitlines() if line.startswith("ran ")] == [
        "ran --help 0",
        "ran --nonsense 2",
        "ran --json 2",
        "ran --once 3",
        "ran --once --json 3",
        "ran --plain 3",
        "ran  2",
    ]
    assert "--json needs --once" in ran.err


async def test_what_is_no_terminal_gets_a_way_out_and_exit_2(tmp_path: Path) -> None:
    ran = await relay_tui("--socket", tmp_path / "s")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "relay-tui: not a terminal: use --once --json, or --plain\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 seconds"),
        (0, "0 seconds"),
        (0.0004, "1 millisecond"),
        (0.25, "250 milliseconds"),
        (1, "1 second"),
        (61, "1 minute and 1 second"),
        (3600, "1 hour"),
        (3601, "1 hour"),
        (90_000, "1 day and 1 hour"),
        (2 * 86_400 + 59, "2 days"),
    ],
)
def test_durations_are_said_in_words(seconds: float, words: str) -> None:
    assert spoken(seconds) == words

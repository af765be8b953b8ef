"""No process outlives the adapter: not what it started, not what that started, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relay_supervisor.adapters.claude_code import launcher
from tests.kit.processes import is_gone
from tests.kit.waiting import until
from tests.supervisor.adapters.claude_code.bench import DESK, Bench

REPOSITORY = Path(__file__).parents[4]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


@asynccontextmanager
async def killed_by_the_test(bench: Bench, message: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a bus with an agent in a separate process that has been sent a message."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.supervisor.adapters.claude_code.child",
        str(bench.directory),
        message,
        cwd=REPOSITORY,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_stop_ends_a_turn_its_program_and_its_stubborn_grandchild(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("!grandchild")
        grandchild = await bench.until("grandchild")
        await desk.relay.remove_adapter("claude", drain_timeout=0.0)
        assert is_gone(grandchild["pid"])
        assert is_gone(grandchild["parent"])
        assert [code for code, _ in await desk.letters()] == ["interrupted"]
        await until(lambda: len(desk.failures) == 1)
        assert bench.events("interrupt")


@pytest.mark.usefixtures("hasty")
async def test_a_stop_ends_what_a_turn_has_left_running(bench: Bench) -> None:
    async with bench.run() as desk:
        assert await desk.ask("!grandchild answer") == "started"
        (grandchild,) = bench.events("grandchild")
        assert not is_gone(grandchild["pid"])
    assert is_gone(grandchild["pid"])


@pytest.mark.usefixtures("hasty")
async def test_a_program_that_crashes_takes_its_grandchild_with_it(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("!grandchild")
        grandchild = await bench.until("grandchild")
        os.kill(grandchild["parent"], signal.SIGKILL)
        await until(lambda: bool(desk.failures))
        assert is_gone(grandchild["pid"])
        assert "exit code 137" in desk.failures[0]


async def test_a_launcher_that_is_killed_takes_the_program_with_it(bench: Bench) -> None:
    async with bench.run() as desk:
        await desk.send("!deaf")
        deaf = await bench.until("deaf")
        os.kill(parent_of(deaf["pid"]), signal.SIGKILL)
        await until(lambda: is_gone(deaf["pid"]))
        await until(lambda: len(desk.failures) == 1)


@pytest.mark.usefixtures("hasty")
async def test_a_stop_while_the_program_starts_leaves_nothing(bench: Bench) -> None:
    slow = bench.directory / "slow"
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo 2.1.325\necho $$ > {bench.directory}/pid\nexec sleep 1000\n'
    )
    slow.chmod(0o755)
    pid = bench.directory / "pid"
    async with bench.run(cliPath=str(slow)) as desk:
        await desk.send("hello")
        await until(lambda: pid.exists() and pid.read_text() != "")
        await desk.relay.remove_adapter("claude", drain_timeout=0.0)
        assert is_gone(int(pid.read_text()))


async def test_a_killed_supervisor_leaves_no_process_and_the_turn_is_parked_not_run_again(bench: Bench) -> None:
    order = "!grandchild deaf"
    async with killed_by_the_test(bench, order) as process:
        await bench.until("deaf")
        (about,) = bench.events("grandchild")
        launcher = parent_of(bench.starts[0]["pid"])
        process.kill()
        await process.wait()
        await until(lambda: is_gone(about["pid"]) and is_gone(bench.starts[0]["pid"]) and is_gone(launcher))
    async with bench.run() as desk:
        await until(lambda: len(desk.replies) == 1)
        ((code, _),) = await desk.letters()
        assert code == "interrupted"
        (notice,) = desk.replies
        assert notice.subject == DESK
        assert notice.payload["performative"] == "failure"
        assert notice.payload["correlationId"] == "c-1"
        assert notice.payload["platformData"]["code"] == "interrupted"
        assert await desk.ask("hello") == "echo: hello"
    assert bench.prompts == [order, "hello"]
    assert len(desk.replies) == 2


# The launcher by itself


LAUNCH = [sys.executable, "-I", "-S", launcher.__file__]
SLEEPER = "echo $$ > {}; exec sleep 1000"


def plan(program: str) -> dict[str, str]:
    return {
        launcher.PLAN_VARIABLE: f"KEPT OTHER\n{program}",
        "KEPT": "kept",
        "LOST": "lost",
        "PATH": os.environ["PATH"],
    }


async def test_a_launcher_passes_on_input_output_and_how_the_program_ended() -> None:
    process = await asyncio.create_subprocess_exec(
        *LAUNCH, "-c", "read x; echo $x $KEPT $LOST; exit 7", env=plan("/bin/sh"), stdin=PIPE, stdout=PIPE
    )
    output, _ = await process.communicate(b"hello\n")
    assert (output, process.returncode) == (b"hello kept\n", 7)


async def test_a_launcher_says_that_there_is_no_program() -> None:
    process = await asyncio.create_subprocess_exec(*LAUNCH, env=plan("/no/such"), stdin=PIPE, stderr=PIPE)
    _, errors = await process.communicate()
    assert (errors, process.returncode) == (b"cannot run /no/such: No such file or directory\n", 127)


async def test_the_end_of_its_input_ends_a_program_that_does_not_care(tmp_path: Path, hasty: Path) -> None:
    mark = tmp_path / "pid"
    process = await asyncio.create_subprocess_exec(
        *LAUNCH[:-1], hasty, "-c", SLEEPER.format(mark), env=plan("/bin/sh"), stdin=PIPE
    )
    await until(lambda: mark.exists() and mark.read_text() != "")
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 128 + signal.SIGTERM
    assert is_gone(int(mark.read_text()))


async def test_the_end_of_its_parent_ends_a_program_whose_input_stays_open(tmp_path: Path) -> None:
    mark, ready = tmp_path / "pid", tmp_path / "ready"
    parent = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        f'"$@" <&0 & while [ ! -e {ready} ]; do sleep 0.02; done',
        "sh",
        *LAUNCH,
        "-c",
        SLEEPER.format(mark),
        env=plan("/bin/sh"),
        stdin=PIPE,
    )
    await until(lambda: mark.exists() and mark.read_text() != "")
    ready.touch()
    assert await parent.wait() == 0
    await until(lambda: is_gone(int(mark.read_text())))
    assert parent.stdin is not None
    parent.stdin.close()

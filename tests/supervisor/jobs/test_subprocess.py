"""Children: bounded in time and output, and ended with all that they have started, on both loops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import uvloop

from relay_supervisor.jobs.subprocess import LINE_LIMIT, OUTPUT_LIMIT, ChildResult, run_child
from tests.kit.processes import is_gone
from tests.kit.waiting import PATIENCE_SECS, until

PROGRAM = str(Path(__file__).with_name("child_program.py"))
SOON = 0.5
"""A timeout that is meant to pass."""

Run: TypeAlias = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Return what runs a coroutine on a loop of each kind, and look for descriptors that are left open."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        runner.run(
            run_child([sys.executable, "-c", ""], env={}, timeout=PATIENCE_SECS)
        )  # what a loop opens once, it keeps
        before = descriptors()
        yield lambda work: runner.run(limited(work))
        assert descriptors() == before


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Return what reads the pid that a process has written; none of them outlives its test."""
    yield lambda name: int((tmp_path / name).read_text())
    for path in tmp_path.glob("*.pid"):
        with suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


async def limited(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(PATIENCE_SECS):
        return await work


def descriptors() -> list[str]:
    return sorted(os.listdir("/dev/fd"))


def program(
    *arguments: object, timeout: float = PATIENCE_SECS, limit: int = OUTPUT_LIMIT
) -> Coroutine[Any, Any, ChildResult]:
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return run_child(command, env=dict(os.environ), timeout=timeout, output_limit=limit)


def programs_with(argument: str) -> list[str]:
    """Return the processes whose command lines have a text in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in (path / "cmdline").read_bytes():
                found.append(path.name)
    return found


def is_reaped(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return False
    except ChildProcessError:
        return True


@pytest.mark.parametrize(
    ("arguments", "returncode", "output"),
    [
        pytest.param(["exit", 0], 0, "out\nerr\n", id="well"),
        pytest.param(["exit", 3], 3, "out\nerr\n", id="with a code"),
        pytest.param(["die"], -9, "", id="by a signal"),
    ],
)
def test_a_child_that_ends_by_itself(run: Run, arguments: list[object], returncode: int, output: str) -> None:
    assert run(program(*arguments)) == ChildResult(returncode, output, timed_out=False)


def test_a_child_has_its_environment_an_input_that_stays_open_and_a_session_of_its_own(run: Run) -> None:
    env = {**os.environ, "RELAY_DATA_DIR": "/somewhere"}
    result = run(run_child([sys.executable, PROGRAM, "environment"], env=env, timeout=PATIENCE_SECS))
    assert result.output == "['/somewhere', True, True]"


def test_the_end_of_much_output_is_kept(run: Run) -> None:
    result = run(program("print", 4_000_000, limit=1000))
    assert (result.returncode, len(result.output)) == (0, 1000)
    assert result.output.endswith("\n0123456789abcde\nlast \N{REPLACEMENT CHARACTER}\n")


LONG = "x" * (LINE_LIMIT + 1)
TOLD: dict[str, tuple[list[str], list[str], str]] = {
    "a line": (["one\\n"], ["one"], "one\n"),
    "a line in pieces": (["o", "n", "e\\ntwo\\n"], ["one", "two"], "one\ntwo\n"),
    "what is taken is not kept": (["a\\n@b\\n@\\nc\\n"], ["a", "@b", "@", "c"], "a\nc\n"),
    "empty lines": (["\\n\\n"], ["", ""], "\n\n"),
    "a line without an end": (["a\\n@b"], ["a"], "a\n@b"),
    "bytes that are no text": (["@\\xff\\n"], ["@\N{REPLACEMENT CHARACTER}"], ""),
    "as long as may be": (["x" * LINE_LIMIT, "\\n@a\\n"], ["x" * LINE_LIMIT, "@a"], "x" * LINE_LIMIT + "\n"),
    "too long": ([f"@{LONG}\\n@a\\n"], ["@a"], f"@{LONG}\n"),
    "too long in pieces": ([f"@{LONG}", "@b", "@c\\n@a\\n"], ["@a"], f"@{LONG}@b@c\n"),
}


@pytest.mark.parametrize(("parts", "told", "kept"), TOLD.values(), ids=TOLD)
def test_lines_are_told_as_they_come_and_those_that_are_taken_are_not_kept(
    run: Run, parts: list[str], told: list[str], kept: str
) -> None:
    seen: list[str] = []

    def take(line: str) -> bool:
        seen.append(line)
        return line.startswith("@")

    command = [sys.executable, PROGRAM, "write", *parts]
    result = run(run_child(command, env=dict(os.environ), timeout=PATIENCE_SECS, on_line=take))
    assert (seen, result.output, result.returncode) == (told, kept, 0)


def test_a_flood_without_a_line_is_bounded_also_for_who_wants_lines(run: Run) -> None:
    size = 1024 * 1024
    seen: list[str] = []

    def take(line: str) -> bool:
        seen.append(line)
        return False

    command = [sys.executable, "-c", f"import os; os.write(1, b'x' * {size}); os.write(1, b'\\nlast\\n')"]
    result = run(run_child(command, env={}, timeout=PATIENCE_SECS, output_limit=100, on_line=take))
    assert (seen, result.output) == (["last"], "x" * 94 + "\nlast\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux makes a pipe larger")
def test_what_a_child_wrote_before_its_exit_is_read_after_it(
    run: Run, tmp_path: Path, pids: Callable[[str], int]
) -> None:
    size = 1024 * 1024

    async def scenario() -> ChildResult:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(program("flood", tmp_path / "own.pid", size, limit=2 * size))
            await until(lambda: (tmp_path / "own.pid").exists() and (tmp_path / "own.pid").read_text() != "")
            with suppress(ChildProcessError):  # it may be over already
                # It blocks the loop, so that nothing is read until the child has exited.
                os.waitid(os.P_PID, pids("own.pid"), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        return running.result()

    assert run(scenario()) == ChildResult(0, "x" * size, timed_out=False)


def test_a_command_that_cannot_be_started_says_so(run: Run) -> None:
    with pytest.raises(FileNotFoundError):
        run(run_child(["/no/such/command"], env={}, timeout=PATIENCE_SECS))


def test_a_child_that_is_cancelled_can_take_its_leave(run: Run, tmp_path: Path, pids: Callable[[str], int]) -> None:
    run(cancelled(program("polite", tmp_path / "own.pid"), [tmp_path / "own.pid"]))
    assert is_reaped(pids("own.pid"))


def test_a_deaf_family_is_killed_when_its_time_is_up(run: Run, tmp_path: Path, pids: Callable[[str], int]) -> None:
    async def scenario() -> ChildResult:
        result = await program("family", tmp_path / "own.pid", tmp_path / "grand.pid", timeout=SOON)
        # On a busy machine its time may be up before it was there.
        await until(lambda: all(is_gone(int(path.read_text())) for path in tmp_path.glob("*.pid")))
        return result

    result = run(scenario())
    assert result.timed_out
    assert result.returncode in (-signal.SIGKILL, -signal.SIGTERM)


def test_a_deaf_family_is_killed_when_it_is_cancelled(run: Run, tmp_path: Path, pids: Callable[[str], int]) -> None:
    files = [tmp_path / "own.pid", tmp_path / "grand.pid"]
    run(cancelled(program("family", *files), files))
    assert is_reaped(pids("own.pid"))
    run(until(lambda: is_gone(pids("grand.pid"))))


def test_a_second_cancellation_kills_at_once(run: Run, tmp_path: Path, pids: Callable[[str], int]) -> None:
    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(program("deaf", tmp_path / "own.pid"))
            await until((tmp_path / "own.pid").exists)
            running.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
            running.cancel()
        assert is_reaped(pids("own.pid"))

    run(scenario())


def test_a_child_that_is_cancelled_while_it_starts_is_ended(run: Run, tmp_path: Path) -> None:
    async def scenario(turns: int) -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(program("deaf", tmp_path / "own.pid"))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
        assert running.cancelled()

    for turns in range(5):
        run(scenario(turns))
    assert not programs_with(str(tmp_path))


@pytest.mark.parametrize(("kind", "output"), [("polite", "gone\nbye\n"), ("deaf", "gone\n")])
def test_what_a_child_leaves_behind_is_ended_with_it(
    run: Run, tmp_path: Path, pids: Callable[[str], int], kind: str, output: str
) -> None:
    assert run(program("orphan", kind, tmp_path / "grand.pid")) == ChildResult(0, output, timed_out=False)
    run(until(lambda: not (tmp_path / "grand.pid").exists() or is_gone(pids("grand.pid"))))


def test_a_runaway_that_holds_the_pipe_is_not_waited_for(run: Run, tmp_path: Path, pids: Callable[[str], int]) -> None:
    result = run(program("orphan", "runaway", tmp_path / "grand.pid"))
    assert result == ChildResult(0, "gone\n", timed_out=False)
    run(until((tmp_path / "grand.pid").exists))
    assert not is_gone(pids("grand.pid"))


async def cancelled(child: Coroutine[Any, Any, ChildResult], ready: list[Path]) -> None:
    """Cancel a child as soon as it is ready."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(child)
        await until(lambda: all(path.exists() for path in ready))
        running.cancel()
    assert running.cancelled()

"""Nothing outlives the test command, however it ends, and the tests start from a known state, however it is started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import ROOT
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")


# It leaves an orphan behind, in another session and deaf to signals, and a directory that cannot be written to.
WORK = """
import os, signal, subprocess, sys, tempfile
from pathlib import Path
from tests.kit.keeper import keep

SHUT = "cd $TMPDIR; mkdir shut; : > shut/file; chmod 500 shut"
STUBBORN = f"trap '' HUP INT TERM; {SHUT}; echo $$ > $1; while :; do sleep 1; done"

def work():
    told = Path(sys.argv[1])
    subprocess.run(["sh", "-c", 'setsid sh -c "$0" sh "$1" &', STUBBORN, told / "orphan"], check=True)
    while not (told / "orphan").exists() or not (told / "orphan").read_text():
        pass
    status = Path("/proc/self/status").read_text().splitlines()
    told.joinpath("state").write_text("\\n".join(line for line in status if line.startswith(("SigIgn", "SigBlk"))))
    told.joinpath("stdin").write_text(os.readlink("/proc/self/fd/0"))
    told.joinpath("directory").write_text(tempfile.gettempdir())
    told.joinpath("worker").write_text(str(os.getpid()))
    told.joinpath("keeper").write_text(str(os.getppid()))
    ENDING

keep(work)
"""

WAIT = "signal.pause()"


class Run:
    """The work, under way."""

    def __init__(self, told: Path, ending: str, before: Callable[[], None] | None = None) -> None:
        self.told = told
        self.is_over = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK.replace("ENDING", ending), str(told)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=before,
        )
        wait_until(lambda: (told / "keeper").exists() and self.pid("keeper") > 0)

    def pid(self, name: str) -> int:
        return int((self.told / name).read_text() or 0)

    def end(self) -> tuple[int, str]:
        """Return the exit code and the output, once nothing is left."""
        output, _ = self.process.communicate(timeout=30)
        for name in ("orphan", "worker", "keeper"):
            wait_until(lambda name=name: not Path(f"/proc/{self.pid(name)}").exists())  # type: ignore[misc]
        directory = Path((self.told / "directory").read_text())
        assert directory.parent == Path("/tmp")
        wait_until(lambda: not directory.exists())
        self.is_over = True
        return self.process.returncode, output

    def give_up(self) -> None:
        """Do what the keeper should have done."""
        if self.process.poll() is None:
            self.process.kill()
        for name in ("keeper", "worker", "orphan"):
            if not self.is_over and (self.told / name).exists() and (pid := self.pid(name)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        if not self.is_over and (self.told / "directory").exists():
            shutil.rmtree((self.told / "directory").read_text(), ignore_errors=True)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def start(ending: str, before: Callable[[], None] | None = None) -> Run:
        made.append(Run(tmp_path, ending, before))
        return made[-1]

    yield start
    for run in made:
        run.give_up()


@pytest.mark.parametrize(
    ("ending", "code", "output"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("print('a line'); sys.exit('why')", 1, "a line\nwhy\n"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, ""),
        ("os.execv(sys.executable, [sys.executable, '-c', 'print(1); raise SystemExit(5)'])", 5, "1\n"),
    ],
)
def test_its_end_is_ours(ending: str, code: int, output: str, runs: Callable[..., Run]) -> None:
    ended, said = runs(ending).end()
    assert ended == code
    assert sorted(said.splitlines()) == sorted(output.splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_everything(number: signal.Signals, runs: Callable[..., Run]) -> None:
    run = runs(WAIT)
    run.process.send_signal(number)
    assert run.end()[0] == -number


def test_an_interrupt_is_passed_on_and_a_second_one_ends_everything(runs: Callable[..., Run]) -> None:
    run = runs("""
    try:
        signal.pause()
    except KeyboardInterrupt:
        told.joinpath("interrupted").touch()
        signal.pause()
    """)
    run.process.send_signal(signal.SIGINT)
    wait_until((run.told / "interrupted").exists)
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == -signal.SIGINT


@pytest.mark.parametrize(("killed", "code"), [("keeper", 137), ("worker", 137)])
def test_any_part_of_it_may_be_killed(killed: str, code: int, runs: Callable[..., Run]) -> None:
    run = runs(WAIT)
    os.kill(run.pid(killed), signal.SIGKILL)
    assert run.end()[0] == code


def _be_a_bad_parent() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
    os.close(0)


def test_what_the_parent_ignored_blocked_or_closed_is_not_handed_down(runs: Callable[..., Run]) -> None:
    run = runs(WAIT, _be_a_bad_parent)
    assert (run.told / "stdin").read_text() == os.devnull
    state = dict(line.split(":\t") for line in (run.told / "state").read_text().splitlines())
    ignored, blocked = int(state["SigIgn"], 16), int(state["SigBlk"], 16)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGTERM):
        assert not ignored & 1 << number - 1
        assert not blocked & 1 << number - 1
    (line,) = [entry for entry in Path(f"/proc/{run.process.pid}/status").read_text().splitlines() if "SigIgn" in entry]
    for number in (signal.SIGINT, signal.SIGHUP):  # they stay ignored, by the runner
        assert int(line.split()[1], 16) & 1 << number - 1
        run.process.send_signal(number)
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == -signal.SIGTERM


MOUNT = """
    place = tempfile.gettempdir() + "/mounted"
    os.mkdir(place)
    sys.exit(subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], stderr=subprocess.DEVNULL).returncode)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="to mount needs root and mount")
def test_what_is_mounted_in_the_directory_is_unmounted(runs: Callable[..., Run]) -> None:
    if runs(MOUNT).end()[0]:
        pytest.skip("this machine mounts nothing")

"""Run work so that nothing outlives it: no process, no mount, no temporary directory.

Three processes. The *runner* is the process that was started and receives signals. Its child, the *keeper*, has its
own session. The keeper's child does the work in another session, so the terminal cannot interrupt it.

1. The work starts from a known state, however the runner was started (`nohup`, `&`, a script that ignores signals): no
   signal is ignored or blocked, stdin, stdout and stderr are open, and `TMPDIR` is a new directory with a short name,
   because it holds sockets.
2. The keeper adopts every orphan of the work (Linux; PR_SET_CHILD_SUBREAPER), whatever session it is in. When the work
   has ended, or the runner is gone, it kills all its descendants, unmounts what is mounted in the directory and
   removes it. A pipe tells it of the runner's end, so that SIGKILL is no exception.
3. The runner's exit code is that of the work. SIGINT is passed on; a second one, SIGTERM or SIGHUP ends the work at
   once. A signal that was ignored when the runner started stays ignored, by the runner.
4. If the keeper is killed, the runner has adopted the same descendants, and does what the keeper would have done.

On other systems than Linux, a process that has left both its parent and its session is not found.

Only the standard library is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

_PR_SET_CHILD_SUBREAPER = 36
_MNT_DETACH = 2

_TOLD_BY = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def keep(work: Callable[[], None]) -> NoReturn:
    """Do work in a process, clean up after it, and exit with its code."""
    _open_standard_files()
    told: list[int] = []
    wakeup = _listen(told, [number for number in _TOLD_BY if signal.getsignal(number) is not signal.SIG_IGN])
    directory = _new_directory()
    _adopt_orphans()
    alive, held = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.fork()
    if keeper == 0:
        os.close(held)
        _be_keeper(work, directory, alive)
    os.close(alive)

    is_passed_on = is_over = False
    while (status := _status_of(keeper)) is None:
        if told and not is_over and (told[-1] != signal.SIGINT or len(told) > 1):
            is_over = True
            os.close(held)  # the keeper sees it
        elif told and not is_passed_on:
            is_passed_on = True
            os.kill(keeper, signal.SIGINT)
        select.select([wakeup], [], [])
        os.read(wakeup, 4096)
    _clean_up(directory)  # does nothing, unless the keeper was killed
    if is_over:
        _die_by(told[-1])
    os._exit(_code_of(status))


def _be_keeper(work: Callable[[], None], directory: Path, runner: int) -> NoReturn:
    told: list[int] = []
    wakeup = _listen(told, _TOLD_BY)
    os.setsid()
    _adopt_orphans()
    worker = os.fork()
    if worker == 0:
        os.close(runner)
        _work(work, directory)
    code = 1
    try:
        while (status := _status_of(worker)) is None:
            readable, _, _ = select.select([wakeup, runner], [], [])
            if runner in readable or set(told) - {signal.SIGINT}:
                break
            os.read(wakeup, 4096)
            if told:
                told.clear()
                os.kill(worker, signal.SIGINT)
        else:
            code = _code_of(status)
        _clean_up(directory)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _work(work: Callable[[], None], directory: Path) -> NoReturn:
    """Do the work, from a state that does not depend on how the runner was started."""
    code: object = 1
    try:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(-1)
        os.environ["TMPDIR"] = str(directory)
        try:
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _new_directory() -> Path:
    """Make a directory with a short name, because the path of a socket has at most 107 bytes."""
    while True:
        directory = Path("/tmp") / f"relay-{secrets.token_hex(2)}"
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            directory.chmod(0o711)  # some tests become another user, who must be able to enter
            return directory


def _clean_up(directory: Path) -> None:
    """Kill all descendants of this process, unmount what is in the directory, and remove it."""
    while found := _descendants():
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _status_of(0)
        if all(_is_beyond_us(pid) for pid in found):
            break
        select.select([], [], [], 0.01)
    for mounted in _mounts_in(directory):
        ctypes.CDLL(None).umount2(os.fsencode(mounted), _MNT_DETACH)
    if not _mounts_in(directory):
        shutil.rmtree(directory, ignore_errors=True)
        for inner, _, _ in os.walk(directory):  # if a test took a permission away
            os.chmod(inner, 0o700)
        shutil.rmtree(directory, ignore_errors=True)


def _descendants() -> list[int]:
    """Return the processes below this one."""
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return found


def _processes() -> list[tuple[int, int]]:
    """Return the ids of all processes, each with its parent's."""
    if not Path("/proc/self/stat").exists():
        with subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True) as ps:
            lines = ps.communicate()[0].splitlines()
        pairs = [(int(line.split()[0]), int(line.split()[1])) for line in lines]
        return [(pid, parent) for pid, parent in pairs if pid != ps.pid]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()
                found.append((int(name), int(stat[1])))
    return found


def _is_beyond_us(pid: int) -> bool:
    """Return True if a process belongs to another user and cannot be killed."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def _status_of(child: int) -> int | None:
    """Reap all children that have ended; return the status of one of them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = ended[1]
    return found


def _mounts_in(directory: Path) -> list[str]:
    """Return the mount points in a directory, the innermost first."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return sorted((point for point in points if point.startswith(f"{directory}/")), key=len, reverse=True)


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, where the kernel supports it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _open_standard_files() -> None:
    """Open stdin, stdout and stderr if they were closed, so that no other file takes their numbers."""
    for standard in range(3):
        try:
            os.fstat(standard)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free


def _listen(told: list[int], numbers: Iterable[signal.Signals]) -> int:
    """Add signals to a list; return a file that becomes readable after a signal, or when a child has ended."""
    wakeup, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in numbers:
        signal.signal(number, lambda number, _: told.append(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return wakeup


def _code_of(status: int) -> int:
    """Return an exit code as a shell does: 128 plus the number of a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _die_by(number: int) -> NoReturn:
    """Die by a signal, like a program that does not handle it."""
    signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)

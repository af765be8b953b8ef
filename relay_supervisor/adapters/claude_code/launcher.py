"""A parent process for a command-line program: hides our environment from it, and ends all its processes.

It runs as ``python -I -S launcher.py ARGUMENTS``, started by `program`'s script. The variable `PLAN_VARIABLE` names the
program and the variables it keeps; arguments, stdin, stdout and stderr are passed on.

1. The program's environment has only the variables that the plan names. (The SDK would pass all of ours.)
2. The program leads a process group, and dies with us (PR_SET_PDEATHSIG). On Linux we adopt its orphans
   (PR_SET_CHILD_SUBREAPER), so all its processes are our descendants, in any group or session. Elsewhere only the
   group is known.
3. Its stdin is a pipe from the supervisor. When that is closed, the program has `EOF_GRACE` to save and exit. When the
   supervisor has died (even by SIGKILL: the kernel closes its end), or we get SIGTERM, it has none.
4. At the end, all remaining processes get SIGTERM, then after `TERM_GRACE` SIGKILL until none is left. Only then do we
   exit, with the program's exit code. This takes less than the 5 s after which the SDK would kill us.

Failure case: if we are killed with SIGKILL ourselves, the program dies (rule 2), but its background processes stay.
Only an operator or the kernel's OOM killer would do that.

It imports only the standard library, and little of it: it starts with every session.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

PLAN_VARIABLE = "RELAY_CLAUDE_LAUNCH"
"""The names of the variables to keep, separated by spaces; a newline; the path of the program."""
EOF_GRACE = 2.0
TERM_GRACE = 1.0
KILL_GRACE = 1.5

_POLL_SECS = 0.02
_WATCH_SECS = 0.25
_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the program until it or the supervisor ends; return the exit code."""
    names, _, program = os.environ.pop(PLAN_VARIABLE).partition("\n")
    kept = frozenset(names.split())
    environment = {name: value for name, value in os.environ.items() if name in kept}
    supervisor = os.getppid()
    with suppress(PermissionError):  # it leads a group already
        os.setsid()  # keeps a Ctrl-C at the supervisor's terminal from us
    prctl = _find_prctl()
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake, told = _listen()
    child = _spawn(program, environment, prctl)
    watch = Watch(child)
    watch.until_over(supervisor, wake, told)
    watch.end_all()
    return watch.code


class Watch:
    """The program and all its processes."""

    def __init__(self, child: int) -> None:
        self.code = 1
        self._child = child
        self._over = False

    def until_over(self, supervisor: int, wake: int, told: list[int]) -> None:
        """Wait until the program has exited, or must end."""
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        poller.register(0, 0)  # a hangup is always reported; the bytes are the program's
        deadline: float | None = None
        while not self.reap():
            if told or os.getppid() != supervisor or (deadline is not None and time.monotonic() > deadline):
                return
            for descriptor, event in poller.poll((_WATCH_SECS if deadline is None else _POLL_SECS) * 1000):
                if descriptor == wake:
                    os.read(wake, 512)
                elif event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                    poller.unregister(0)
                    deadline = time.monotonic() + EOF_GRACE

    def end_all(self) -> None:
        """End all remaining processes: SIGTERM first, then SIGKILL."""
        for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, KILL_GRACE)):
            deadline = time.monotonic() + grace
            left = self._signal_all(number)
            while left and time.monotonic() < deadline:
                select.select([], [], [], _POLL_SECS)  # no event tells that all have exited
                self.reap()
                left = self._signal_all(number if number == signal.SIGKILL else 0)
            if not left:
                return

    def reap(self) -> bool:
        """Reap exited processes, adopted ones too; return True if the program has exited."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._child:
                    self._over = True
                    code = os.waitstatus_to_exitcode(status)
                    self.code = code if code >= 0 else 128 - code
        return self._over

    def _signal_all(self, number: int) -> bool:
        """Signal all our descendants; return True if there are any."""
        if not _LINUX:
            try:
                os.killpg(self._child, number)
            except (ProcessLookupError, PermissionError):
                return False
            return True
        found = find_descendants(os.getpid())
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(found)


def find_descendants(root: int) -> set[int]:
    """Return the living descendants of a process, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]  # the name may contain brackets
                parents[int(name)] = int(parent)
                if state in (b"Z", b"X"):
                    del parents[int(name)]
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if (parent == root or parent in found)} - found:
        found |= more
    return found


def _listen() -> tuple[int, list[int]]:
    """Have signals wake a poll; return the descriptor to poll, and the list of received signals."""
    told: list[int] = []
    wake, write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: told.append(number))
    return wake, told


def _spawn(program: str, environment: dict[str, str], prctl: ctypes._NamedFuncPointer | None) -> int:
    launcher = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setpgid(0, 0)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != launcher:
                os._exit(1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would keep that
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execve(program, [program, *sys.argv[1:]], environment)
    except OSError as error:
        os.write(2, f"cannot run {program}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _find_prctl() -> ctypes._NamedFuncPointer | None:
    if not _LINUX:
        return None
    return ctypes.CDLL(None, use_errno=True).prctl


if __name__ == "__main__":
    sys.exit(main())

"""The process that keeps the demo: it starts the supervisor and the traffic, and leaves nothing behind.

1. It lives as long as its standard input, of which the dashboard has the other end: however the dashboard goes,
   by its own will, Ctrl+C, SIGTERM, SIGHUP or SIGKILL, the end of file is seen here. SIGTERM ends it, too.
2. At the end both processes are told to stop (SIGTERM), killed if they do not, and the directory is removed.
   It is made here as well, so that there is never a directory without somebody to remove it.
3. A process that ends by itself is started again: an operator may stop the supervisor to see what the
   dashboard makes of it. But one that never came up is not: its log goes to stderr, and the exit code is 1.
4. The traffic is started when the supervisor has its socket: until then they would only slow each other down.

Only the standard library is imported, so that it is there at once.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from relay_tui.demo.settings import write_settings

LOOK_SECS = 0.03
"""How often it is looked whether the supervisor has come up."""
AGAIN_SECS = 1.0
"""The pause before a process is started again."""
END_SECS = 4.0
"""How long a process may take to stop."""
LOG_KEPT = 4000
"""As much of a log as fits into a pipe that nobody reads from yet."""
TOLD = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class DemoRunner:
    """The demo's two processes, and their directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data_dir = directory / "data"
        self._socket = directory / "relay.sock"
        self._hooks = socket.create_server(("127.0.0.1", 0))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        """What each was started with, by its module."""

    def keep(self) -> int:
        """Run until standard input ends, and return the exit code."""
        self._directory.mkdir(mode=0o700)
        try:
            write_settings(self._directory, self._data_dir, self._hooks.getsockname()[1])
            self._start("relay_supervisor", "run")
            while not self._socket.exists():
                if self._children["relay_supervisor"].poll() is not None:
                    sys.stderr.write((self._directory / "relay_supervisor.log").read_text(errors="replace")[-LOG_KEPT:])
                    return 1
                if is_over(LOOK_SECS):
                    return 0
            self._start("relay_tui.demo.traffic", "--hooks", str(self._hooks.fileno()))
            self._watch()
            return 0
        finally:
            self._end()
            shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, module: str, *arguments: str) -> None:
        self._arguments[module] = arguments
        where = ("--data-dir", str(self._data_dir), "--socket", str(self._socket))
        with (self._directory / f"{module}.log").open("ab") as log:
            self._children[module] = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, *where],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[self._hooks.fileno()],
            )

    def _watch(self) -> None:
        while not is_over(AGAIN_SECS):
            for module, child in list(self._children.items()):
                if child.poll() is not None:
                    self._start(module, *self._arguments[module])

    def _end(self) -> None:
        for child in reversed(self._children.values()):  # the supervisor last: it waits for what others have in hand
            child.terminate()
            try:
                child.wait(END_SECS)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def is_over(patience: float) -> bool:
    """Wait a moment, and tell whether standard input has ended."""
    readable, _, _ = select.select([0], [], [], patience)
    return bool(readable)


def main() -> int:
    """Keep the demo in the directory that is named."""
    for number in TOLD:
        # As if the dashboard had gone: standard input becomes a file that ends at once.
        signal.signal(number, lambda *_: os.dup2(os.open(os.devnull, os.O_RDONLY), 0))
    return DemoRunner(Path(sys.argv[1])).keep()


if __name__ == "__main__":
    sys.exit(main())

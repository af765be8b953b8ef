"""The process that runs the demo: it starts the supervisor and the traffic, and cleans up.

1. It runs until its standard input ends. The dashboard holds the other end, so however the dashboard exits, SIGKILL
   included, this process notices. SIGTERM ends it too.
2. At the end both processes get SIGTERM, then SIGKILL if they do not stop, and the directory is removed. The directory
   is created here as well, so that it never exists without a process that removes it.
3. A process that exits is restarted: an operator may stop the supervisor to see the dashboard react. A supervisor that
   never started is not: its log goes to stderr, and the exit code is 1.
4. The traffic starts when the socket exists; earlier, it would only slow down the supervisor.

Only the standard library is imported, for a fast start.
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

POLL_SECS = 0.03
RESTART_SECS = 1.0
STOP_SECS = 4.0
LOG_KEPT = 4000
"""The bytes of a log that fit into a pipe without a reader."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class DemoRunner:
    """The two processes of the demo, and their directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data_dir = directory / "data"
        self._socket = directory / "relay.sock"
        self._hooks = socket.create_server(("127.0.0.1", 0))
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        """By module."""

    def run(self) -> int:
        """Run until standard input ends; return the exit code."""
        self._directory.mkdir(mode=0o700)
        try:
            write_settings(self._directory, self._data_dir, self._hooks.getsockname()[1])
            self._start("relay_supervisor", "run")
            while not self._socket.exists():
                if self._children["relay_supervisor"].poll() is not None:
                    sys.stderr.write((self._directory / "relay_supervisor.log").read_text(errors="replace")[-LOG_KEPT:])
                    return 1
                if is_over(POLL_SECS):
                    return 0
            self._start("relay_tui.demo.traffic", "--hooks", str(self._hooks.fileno()))
            self._watch()
            return 0
        finally:
            self._stop()
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
        while not is_over(RESTART_SECS):
            for module, child in list(self._children.items()):
                if child.poll() is not None:
                    self._start(module, *self._arguments[module])

    def _stop(self) -> None:
        for child in reversed(self._children.values()):  # the supervisor last: it waits for in-flight messages
            child.terminate()
            try:
                child.wait(STOP_SECS)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def is_over(patience: float) -> bool:
    """Wait up to `patience` seconds; return True if standard input has ended."""
    readable, _, _ = select.select([0], [], [], patience)
    return bool(readable)


def main() -> int:
    """Run the demo in the directory of the first argument."""
    for number in STOP_SIGNALS:
        # As if the dashboard had exited: standard input becomes an empty file.
        signal.signal(number, lambda *_: os.dup2(os.open(os.devnull, os.O_RDONLY), 0))
    return DemoRunner(Path(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())

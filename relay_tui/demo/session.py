"""Start the demo, wait until it responds, stop it.

1. `DemoSession.start` returns at once: it starts one process, the runner, which starts the others. The dashboard
   imports and paints meanwhile; `ready` returns when the supervisor responds.
2. `stop` and the end of a ``with`` wait until the processes and the directory are gone. If this process is killed
   first, the runner notices and cleans up.
3. RELAY_… variables describe the user's own supervisor and are not passed on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from relay_tui.launch import last_log_line

READY_SECS = 60.0
_POLL_SECS = 0.03
_STOP_SECS = 15.0


class DemoSession:
    """A supervisor with live traffic, in a temporary directory."""

    def __init__(self, directory: Path, runner: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.socket = directory / "relay.sock"
        self.runner = runner

    @classmethod
    def start(cls, directory: Path | None = None) -> Self:
        """Start the demo in a new directory below the given one (default: the system's temporary one)."""
        # Short: the length of a socket's path is limited.
        home = (directory or Path(tempfile.gettempdir())) / f"relay-demo-{token_hex(4)}"
        packages = str(Path(__file__).parents[2])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        environment.pop("NOTIFY_SOCKET", None)  # of a service that this may run in
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, environment.get("PYTHONPATH")]))
        runner = subprocess.Popen(
            # -P: no imports from the working directory; -S: only the standard library is needed.
            [sys.executable, "-P", "-S", "-m", "relay_tui.demo.runner", str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        return cls(home, runner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def ready(self) -> None:
        """Return when the supervisor responds.

        Raises:
            SupervisorUnavailable: if it does not start; with the last line of its log, if there is one.
        """
        from relay_core.client.client import RelayClient
        from relay_core.errors import SupervisorUnavailable

        try:
            async with asyncio.timeout(READY_SECS):
                while True:
                    if self.runner.poll() is not None:
                        raise self._failed("did not start")
                    try:
                        async with RelayClient(self.socket, data_dir=self.data_dir, token=self.operator_token()):
                            return
                    except SupervisorUnavailable:
                        await asyncio.sleep(_POLL_SECS)
        except TimeoutError:
            raise self._failed(f"did not respond within {READY_SECS:g} s") from None

    def operator_token(self) -> str | None:
        """Return the token to connect with, instead of RELAY_TOKEN; None until it exists."""
        try:
            return (self.data_dir / "operator.token").read_text().strip() or None
        except OSError:
            return None

    def stop(self) -> None:
        """Stop the processes and remove the directory; blocks until that is done. Idempotent."""
        if self.runner.stdin is not None:
            self.runner.stdin.close()
        self.runner.wait(_STOP_SECS)
        if self.runner.stderr is not None:
            self.runner.stderr.close()

    def _failed(self, problem: str) -> Exception:
        from relay_core.errors import SupervisorUnavailable

        log = b""
        if self.runner.poll() is not None and self.runner.stderr is not None:
            log = self.runner.stderr.read()
        why = f": {last_log_line(log)}" if log else ""
        return SupervisorUnavailable(f"the demo's supervisor {problem}{why}", socket=str(self.socket))

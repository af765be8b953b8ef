"""Start the demo, report when it answers, stop it.

1. `DemoSession.start` returns at once: it starts one process, the keeper, which starts the others. The dashboard
   imports and paints while the supervisor comes up; `ready` reports when it answers.
2. `stop`, the end of a ``with`` and of `run_demo` wait until the processes and the directory are gone. If this process
   is killed first, the keeper notices and cleans up.
3. RELAY_… variables describe the user's own supervisor and are not passed on.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from relay_tui.launch import last_log_line

READY_SECS = 60.0
_LOOK_SECS = 0.03
_STOP_SECS = 15.0


class DemoSession:
    """A supervisor with living traffic, in a directory of its own."""

    def __init__(self, directory: Path, runner: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.socket = directory / "relay.sock"
        self.runner = runner

    @classmethod
    def start(cls, directory: Path | None = None) -> Self:
        """Start everything in a new directory below the one that is given, or the system's for such; return at once."""
        # Short, since a socket's path must be.
        home = (directory or Path(tempfile.gettempdir())) / f"relay-demo-{token_hex(4)}"
        packages = str(Path(__file__).parents[2])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        environment.pop("NOTIFY_SOCKET", None)  # of the service that this may run in
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, environment.get("PYTHONPATH")]))
        runner = subprocess.Popen(
            # -P: not what happens to lie in the working directory; -S: nothing but the standard library is needed.
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
        """Return once the supervisor answers.

        Raises:
            SupervisorUnavailable: if it does not come up; with the end of its log, if there is one.
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
                        await asyncio.sleep(_LOOK_SECS)
        except TimeoutError:
            raise self._failed(f"did not answer within {READY_SECS:g} s") from None

    def operator_token(self) -> str | None:
        """Return what to connect with, instead of a RELAY_TOKEN in the environment; None until it is there."""
        try:
            return (self.data_dir / "operator.token").read_text().strip() or None
        except OSError:
            return None

    def stop(self) -> None:
        """End the processes and remove the directory; blocks until that is done; stopping again does nothing."""
        if self.runner.stdin is not None:
            self.runner.stdin.close()
        self.runner.wait(_STOP_SECS)
        if self.runner.stderr is not None:
            self.runner.stderr.close()

    def _failed(self, what: str) -> Exception:
        from relay_core.errors import SupervisorUnavailable

        said = b""
        if self.runner.poll() is not None and self.runner.stderr is not None:
            said = self.runner.stderr.read()
        why = f": {last_log_line(said)}" if said else ""
        return SupervisorUnavailable(f"the demo's supervisor {what}{why}", socket=str(self.socket))


@asynccontextmanager
async def run_demo(directory: Path | None = None) -> AsyncIterator[DemoSession]:
    """Run a demo, from when its supervisor answers."""
    world = DemoSession.start(directory)
    try:
        await world.ready()
        yield world
    finally:
        await asyncio.to_thread(world.stop)

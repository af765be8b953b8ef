"""A supervisor for tests: the real command in a separate process, on a fresh directory."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.errors import SupervisorUnavailable
from tests.kit.waiting import PATIENCE_SECS

OS: dict[str, Any] = {"durability": "os"}
UNLIMITED: dict[str, Any] = {
    "durability": "os",
    "reliability": {"rateLimit": {"enabled": False}, "backpressure": {"maxMailboxSize": 1_000_000}},
}
"""For tests whose subject is not a limit."""


class Site:
    """The data directory and the socket of a supervisor, whichever process it runs in."""

    def __init__(self, data_dir: Path, socket: Path) -> None:
        self.data_dir = data_dir
        self.socket = socket

    def client(self, **options: Any) -> RelayClient:
        """Return a client that is not connected yet."""
        return RelayClient(self.socket, data_dir=self.data_dir, **options)


class Daemon(Site):
    """A supervisor's process, which can be killed and started again on the same data."""

    def __init__(self, data_dir: Path, socket: Path, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, socket)
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self._environment = environment or {}
        self.process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        environment.pop("NOTIFY_SOCKET", None)
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "relay_supervisor",
                "run",
                "--data-dir",
                str(self.data_dir),
                "--socket",
                str(self.socket),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **self._environment},
                start_new_session=True,
            )

    async def start(self) -> None:
        """Start the process and return once it is ready."""
        await self.launch()
        await self.ready()

    async def ready(self) -> None:
        """Return once it accepts connections."""
        async with asyncio.timeout(PATIENCE_SECS):
            while True:
                if self.process.returncode is not None:
                    raise AssertionError(f"the supervisor exited with {self.process.returncode}:\n{self.output()}")
                with suppress(SupervisorUnavailable):
                    async with self.client():
                        return
                await asyncio.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        # Not send_signal of the process: that polls it first, and may take its exit code away from asyncio (then: 255).
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    async def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.send(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECS):
            return await self.process.wait()

    async def kill(self) -> None:
        """Kill it, with everything it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    def output(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write config.json."""
        (self.data_dir / "config.json").write_text(json.dumps(config))


@asynccontextmanager
async def a_daemon(
    root: Path,
    config: Mapping[str, Any] | None = None,
    *,
    started: bool = True,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Daemon]:
    """Run a supervisor on a fresh directory below `root`; its socket has a short path, wherever that is."""
    data_dir = root / "data"
    data_dir.mkdir(mode=0o700)
    sockets = Path(tempfile.mkdtemp(prefix="relay-"))
    daemon = Daemon(data_dir, sockets / "relay.sock", environment)
    daemon.write_config(OS if config is None else config)
    try:
        if started:
            await daemon.start()
        yield daemon
    finally:
        if hasattr(daemon, "process") and daemon.process.returncode is None:
            await daemon.kill()
        shutil.rmtree(sockets, ignore_errors=True)

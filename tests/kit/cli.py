"""The command `relay` for tests, against a supervisor in a process.

Starting a process takes half a second. So most calls run the command's entry point in the test's process
(`Relay.__call__`). Tests of signals, pipes and terminals, and one test of each command, start a process (`Relay.real`).
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relay_supervisor.cli.entry import guarded
from relay_supervisor.cli.groups import root_app
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.waiting import PATIENCE_SECS

PLUGIN = """
from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope

class Chat:
    patterns = ("{pattern}",)
    {trait} = True

    def __init__(self, id: str, config: object) -> None:
        self.id = id
        self.status = AdapterStatus("disconnected")

    async def start(self, context: AdapterContext) -> None:
        self.status = AdapterStatus("connected")

    async def stop(self) -> None:
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        return DeliveryResult(ok=envelope.subject.endswith("ann"), error="the chat is closed")

adapter = Chat
"""
"""An adapter to chats, of which only those whose subject ends with `ann` are open."""


class Ran(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the one JSON document on stdout."""
        return json.loads(self.out)


class Relay:
    """Run `relay` against one supervisor."""

    def __init__(self, daemon: Daemon | None = None, **environment: str) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
        self.environment.pop("XDG_RUNTIME_DIR", None)
        self.daemon: Daemon
        if daemon is not None:
            self.daemon = daemon
            self.environment |= {"RELAY_SOCKET": str(daemon.socket), "RELAY_DATA_DIR": str(daemon.data_dir)}
        self.environment |= environment
        self.restart: Callable[[], None]
        """Kill the supervisor and start it again on the same data."""

    def __call__(self, *args: str, stdin: str = "", code: int = 0, environment: Mapping[str, str] | None = None) -> Ran:
        """Run a command within this process and check its exit code."""
        streams = [io.TextIOWrapper(io.BytesIO(data)) for data in (stdin.encode(), b"", b"")]
        before = sys.stdin, sys.stdout, sys.stderr, os.environ.copy()
        sys.stdin, sys.stdout, sys.stderr = streams
        os.environ.clear()
        os.environ.update({**self.environment, **(environment or {})})
        try:
            ended = guarded("relay", lambda: root_app()(args=list(args), prog_name="relay", standalone_mode=False))
        finally:
            sys.stdin, sys.stdout, sys.stderr, environ = before
            os.environ.clear()
            os.environ.update(environ)
        for stream in streams:
            stream.flush()
        return checked(ended, *(stream.buffer.getvalue().decode() for stream in streams[1:]), code=code)

    def real(
        self,
        *args: str,
        stdin: str | None = None,
        code: int = 0,
        environment: Mapping[str, str] | None = None,
        module: str = "relay_supervisor.cli",
    ) -> Ran:
        """Run a command in a process and check its exit code."""
        process = self.start(*args, environment=environment, module=module, stdin=subprocess.PIPE)
        return end(process, stdin=stdin or "", code=code)

    def both(self, *args: str, code: int = 0) -> tuple[Ran, Any]:
        """Run a command in a process and with --json in this one; return the result and the JSON document."""
        text = self.start(*args)
        document = self(*args, "--json", code=code).json
        return end(text, code=code), document

    def ask(self, method: str, **params: Any) -> Any:
        """Call a method of the socket."""
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rwb") as file:
            client.settimeout(PATIENCE_SECS)
            client.connect(str(self.daemon.socket))
            file.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
            file.flush()
            answer = json.loads(file.readline())
        assert "result" in answer, answer
        return answer["result"]

    def add(self, *subjects: str) -> None:
        """Register endpoints."""
        for subject in subjects:
            self.ask("endpoints.register", subject=subject)

    def waiting(self, subject: str) -> list[Any]:
        """Return the payloads that are waiting at a subject."""
        return [message["payload"] for message in self.ask("inbox.peek", subject=subject)["messages"]]

    def letters(self, **chosen: Any) -> list[Any]:
        """Return dead letters, newest first."""
        found: list[Any] = self.ask("deadletters.list", filter=chosen)["deadLetters"]
        return found

    def start(
        self,
        *args: str,
        environment: Mapping[str, str] | None = None,
        module: str = "relay_supervisor.cli",
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**self.environment, **(environment or {})},
            text=True,
        )

    def publish(self, subject: str, payload: Any = "hi", sender: str = "relay.test", **more: Any) -> str:
        """Publish a message and return its id."""
        return str(self.ask("publish", **{"subject": subject, "from": sender, "payload": payload, **more})["messageId"])


def end(process: subprocess.Popen[str], *, stdin: str | None = None, code: int = 0) -> Ran:
    """Wait until a command ends and check its exit code."""
    try:
        out, err = process.communicate(stdin, timeout=PATIENCE_SECS)
    finally:
        process.kill()
    return checked(process.returncode, out or "", err or "", code=code)


def checked(ended: int, out: str, err: str, *, code: int) -> Ran:
    """Check the exit code of a command and return its result."""
    assert ended == code, f"exit code {ended}, not {code}:\n{out}\n{err}"
    assert "Traceback" not in err
    return Ran(ended, out, err)


def write_plugin(data_dir: Path, id: str, pattern: str, trait: str, **more: Any) -> None:
    """Write an adapter's program, and an adapters.json that names it."""
    plugin = data_dir / f"{id}.py"
    plugin.write_text(PLUGIN.format(pattern=pattern, trait=trait))
    plugin.chmod(0o600)
    (data_dir / "adapters.json").write_text(json.dumps({"adapters": [{"id": id, "path": plugin.name}], **more}))


async def _kill_and_start(daemon: Daemon) -> None:
    await daemon.kill()
    await daemon.start()


@contextmanager
def a_relay(
    root: Path,
    config: Mapping[str, Any] = UNLIMITED,
    *,
    adapters: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Relay]:
    """Run a supervisor, if asked with an adapter `broken` that delivers nothing to relay.out.>."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        daemon = runner.run(stack.enter_async_context(a_daemon(root, config, started=False, environment=environment)))
        try:
            if adapters:
                write_plugin(daemon.data_dir, "broken", "relay.out.>", "detached")
            runner.run(daemon.start())
            relay = Relay(daemon)
            relay.restart = lambda: runner.run(_kill_and_start(daemon))
            yield relay
        finally:
            runner.run(stack.aclose())


@pytest.fixture(scope="module")
def module_relay(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Relay]:
    """Run a supervisor for the tests of a module, with the endpoints and adapters that its marker `bus` names."""
    marker = request.node.get_closest_marker("bus")
    options = marker.kwargs if marker else {}
    with a_relay(tmp_path_factory.mktemp("relay"), adapters=options.get("adapters", False)) as relay:
        relay.add(*options.get("endpoints", ()))
        yield relay

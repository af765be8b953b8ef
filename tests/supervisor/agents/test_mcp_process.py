"""The process `relay mcp`: what it needs, how it ends, and what a bad client or an absent supervisor does to it."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from relay_supervisor.agents.mcp.session import MAX_CALLS, MAX_UNWRITTEN
from tests.kit.bus import A, B
from tests.kit.cli import Relay
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.waiting import PATIENCE_SECS, wait_until
from tests.supervisor.agents.clients import Lines, command, lines

HEAVY = {
    "asyncio",
    "dataclasses",
    "orjson",
    "pathlib",
    "pydantic",
    "re",
    "socket",
    "subprocess",
    "threading",
    "typer",
    "typing",
}
KNOWN = {"re"}
"""Of these, what the standard library's json brings."""

PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n"


@pytest.fixture(scope="module")
def relay(relay: Relay) -> Relay:
    for subject in (A, B):
        relay.ask("agents.add", subject=subject)
    return relay


@pytest.fixture
def daemon(relay: Relay) -> Daemon:
    return relay.daemon


@contextmanager
def not_started(root: Path) -> Iterator[tuple[Daemon, asyncio.Runner]]:
    """Make a place for a supervisor that does not run yet."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        daemon = runner.run(stack.enter_async_context(a_daemon(root, UNLIMITED, started=False)))
        try:
            yield daemon, runner
        finally:
            runner.run(stack.aclose())


# Without a supervisor


def test_without_a_supervisor_the_tools_are_there_and_say_what_is_wrong(tmp_path: Path) -> None:
    with not_started(tmp_path) as (daemon, _), lines(daemon, A, "--token", "t") as mcp:
        assert mcp.initialize()["result"]["serverInfo"]["name"] == "relay"
        mcp.call(1, "relay_list")
        mcp.call(2, "relay_send", to=B, content="x")
        assert "no supervisor is running: start one with 'relay-supervisor run'" in mcp.text(1)
        assert mcp.text(2).startswith("Not sent: ")
        assert mcp.end() == (0, b"")


def test_without_a_token_the_tools_say_how_to_get_one_and_work_once_it_is_there(tmp_path: Path) -> None:
    with not_started(tmp_path) as (daemon, runner), lines(daemon, A) as mcp:
        mcp.initialize()
        mcp.call(1, "relay_list")
        assert "run 'relay agent add relay.agent.a' first" in mcp.text(1)
        runner.run(daemon.start())
        Relay(daemon).ask("agents.add", subject=A)
        mcp.call(2, "relay_inbox")
        assert mcp.text(2) == "0 messages."
        code, said = mcp.end()
        assert code == 0
        assert said.startswith(b"relay mcp: relay.agent.a has no token: run")


# What it imports


def test_it_imports_nothing_heavy(daemon: Daemon) -> None:
    """In a whole session, in which a tool was called."""
    program = f"""
import json, os, sys
sys.argv = ["relay", "mcp", "--as", {A!r}, "--data-dir", {str(daemon.data_dir)!r}, "--socket", {str(daemon.socket)!r}]
os._exit = sys.exit  # it ends at once, and could not be asked any more
from relay_supervisor.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
    initialize = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    said = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "relay_inbox", "arguments": {}}},
    ]
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(json.dumps(one) + "\n" for one in said),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECS,
    )
    assert "0 messages." in ran.stdout
    imported = {name.split(".")[0] for name in json.loads(ran.stderr)}
    assert imported & HEAVY == KNOWN


# How it is called, and how it ends


def test_the_common_options_may_stand_before_it(relay: Relay, daemon: Daemon) -> None:
    asked = PING.decode()
    ran = relay.real("--socket", str(daemon.socket), "mcp", "--as", A, stdin=asked)
    assert json.loads(ran.out) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert relay.real("mcp", f"--as={A}", stdin=asked).out == ran.out


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        pytest.param([], "--as needs the agent's subject", id="nobody"),
        pytest.param(["--as", "relay.agent.*"], "--as needs the agent's subject", id="a pattern"),
        pytest.param(["--as"], "--as needs a value", id="no value"),
        pytest.param(["--as", A, "--sender", "x"], "unexpected argument '--sender'", id="unknown"),
    ],
)
def test_a_wrong_call_is_explained(args: list[str], wrong: str) -> None:
    ran = Relay().real("mcp", *args, code=2)
    assert ran.out == ""
    assert ran.err.startswith(f"relay mcp: {wrong}")


def test_without_a_stdin_it_ends_at_once(daemon: Daemon) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, *command(daemon, A)]
    ran = subprocess.run(closed, capture_output=True, text=True, check=False, timeout=PATIENCE_SECS)
    assert ran.returncode == 2
    assert ran.stderr.startswith("relay mcp: stdin and stdout must be open")


def test_it_ends_with_its_stdin_and_leaves_the_rest_to_the_supervisor(relay: Relay, daemon: Daemon) -> None:
    id = relay.publish(A, {"content": "x"}, sender=B)
    with lines(daemon, A) as mcp:
        mcp.initialize()
        mcp.call(1, "relay_inbox", claim=True)
        assert id in mcp.text(1)
        mcp.call(2, "relay_ask", to=B, content="nobody will answer this")
        assert mcp.end() == (0, b"")
    wait_until(lambda: [one["code"] for one in relay.letters(ids=[id])] == ["disconnected"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_quietly_when_it_is_told_to(daemon: Daemon, number: signal.Signals) -> None:
    with lines(daemon, A) as mcp:
        mcp.initialize()
        mcp.call(1, "relay_ask", to=B, content="nobody will answer this")
        mcp.process.send_signal(number)
        assert mcp.process.wait(PATIENCE_SECS) == 0
        assert mcp.process.stderr is not None
        assert mcp.process.stderr.read() == b""


def test_it_ends_when_nobody_reads_what_it_says(daemon: Daemon) -> None:
    with lines(daemon, A) as mcp:
        mcp.initialize()
        assert mcp.process.stdout is not None
        mcp.process.stdout.close()
        mcp.call(1, "relay_list")
        assert mcp.process.wait(PATIENCE_SECS) == 0


# Bad clients


def test_a_line_that_is_too_long_is_refused_and_skipped(daemon: Daemon) -> None:
    with lines(daemon, A) as mcp:
        mcp.initialize()
        assert mcp.process.stdin is not None
        for size in (5_000_000, 4_194_305):
            mcp.process.stdin.write(b'"' + b"x" * (size - 2) + b'"\n')
            mcp.process.stdin.flush()
            assert mcp.read()["error"] == {"code": -32600, "message": "a line has at most 4194304 bytes"}
        mcp.write({"jsonrpc": "2.0", "id": 2, "method": "ping"})
        assert mcp.read()["id"] == 2


def test_a_client_that_does_not_read_is_not_read_from(daemon: Daemon) -> None:
    with lines(daemon, A) as mcp:
        mcp.initialize()
        assert mcp.process.stdin is not None
        fd = mcp.process.stdin.fileno()
        os.set_blocking(fd, False)
        listing = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode() + b"\n"
        written = 0
        while select.select([], [fd], [], 2.0)[1]:  # until it takes nothing more
            written += os.write(fd, (listing * 10)[written % len(listing) :])
        assert _memory_mb(mcp) < 20 + MAX_UNWRITTEN / 1e6
        for _ in range(written // len(listing)):
            assert len(mcp.read()["result"]["tools"]) == 6


def test_only_so_many_calls_run_at_a_time(daemon: Daemon) -> None:
    with lines(daemon, A) as mcp:
        mcp.initialize()
        for number in range(MAX_CALLS):
            mcp.call(100 + number, "relay_ask", to=B, content="wait")
        mcp.call(1, "relay_list")
        assert "calls are already running" in mcp.text(1)
        mcp.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 100}})
        mcp.call(2, "relay_list")
        assert A in mcp.text(2)


def _memory_mb(mcp: Lines) -> float:
    status = Path(f"/proc/{mcp.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1e3

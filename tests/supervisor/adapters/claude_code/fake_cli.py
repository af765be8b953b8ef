#!/usr/bin/env -S python3 -IS
"""A program that speaks the stream of Claude Code 2.1.325 as claude-agent-sdk 0.2 expects it, without a model.

Usable as ``cliPath``. It answers ``echo: TEXT``, where TEXT is what stands between the boundary lines of the prompt. A
text that begins with ``!`` is an order, see `ORDERS`. Its agent's ``env`` may have

- ``FAKE_CLAUDE_JOURNAL``: a file to which it appends one JSON line for each start, prompt, end of a turn, interrupt,
  grandchild and exit;
- ``FAKE_CLAUDE_ORDER``: an order that is followed whatever the prompt says;
- ``FAKE_CLAUDE_SESSIONS``: a file with the ids of the sessions that can be resumed (``.fake-sessions`` in the working
  directory if not given).

What it says when nobody is logged in, when a session is unknown and when it is interrupted was written down from the
real program.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

VERSION = "2.1.325 (Claude Code)"
_MESSAGE = re.compile(r"<<<message (\w+)>>>\n(.*)\n<<<end of message \1>>>", re.DOTALL)
_STUBBORN = (
    "import signal, os; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); signal.pause()"
)


def new_id() -> str:
    """Return something like a UUID."""
    text = os.urandom(16).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Program:
    """The state of one run."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.session = new_id()
        self.failed = False
        self.text = ""
        self.journal_path = os.environ.get("FAKE_CLAUDE_JOURNAL")
        self.sessions_path = os.environ.get("FAKE_CLAUDE_SESSIONS", ".fake-sessions")

    def run(self) -> int:
        """Serve until stdin ends."""
        resume = next(
            (argument.partition("=")[2] for argument in self.arguments if argument.startswith("--resume=")), None
        )
        self.note("start", argv=self.arguments, env=dict(os.environ), cwd=os.getcwd(), pid=os.getpid(), resume=resume)
        if resume is not None:
            if resume not in self.known_sessions():
                why = f"No conversation found with session ID: {resume}"
                sys.stderr.write(f"{why}\n")
                self.session = resume
                self.result(is_error=True, subtype="error_during_execution", num_turns=0, errors=[why])
                return 1
            self.session = resume
        while (line := self.read()) is not None:
            if line["type"] == "control_request":
                self.control(line)
            elif line["type"] == "user":
                self.turn(line)
        self.note("exit")
        return int(self.failed)

    def read(self) -> dict[str, Any] | None:
        """Return the next message on stdin, or None at its end."""
        line = sys.stdin.readline()
        message: dict[str, Any] | None = json.loads(line) if line else None
        return message

    def control(self, line: dict[str, Any]) -> None:
        """Answer a request of the SDK."""
        subtype = line["request"]["subtype"]
        if subtype == "interrupt":
            self.note("interrupt")
        response: dict[str, Any] = {"commands": [], "agents": []} if subtype == "initialize" else {"still_queued": []}
        answer = {"subtype": "success", "request_id": line["request_id"], "response": response}
        self.say(type="control_response", response=answer)

    def turn(self, line: dict[str, Any]) -> None:
        """Take a prompt as an order."""
        prompt = line["message"]["content"]
        found = _MESSAGE.search(prompt)
        text = found[2] if found else prompt
        self.text = text
        self.note("prompt", line=line, text=text)
        self.say(type="system", subtype="session_state_changed", state="running", sdk_host_only=True)
        about = {
            "cwd": os.getcwd(),
            "tools": [],
            "mcp_servers": [],
            "model": "fake",
            "claude_code_version": VERSION[:7],
        }
        self.say(type="system", subtype="init", **about)
        with open(self.sessions_path, "a") as file:
            file.write(f"{self.session}\n")
        said = os.environ.get("FAKE_CLAUDE_ORDER", text)
        name, _, argument = said.removeprefix("!").partition(" ")
        order = ORDERS.get(name) if said.startswith("!") else None
        if order is None:
            self.assistant({"type": "text", "text": f"echo: {text}"})
            self.result(f"echo: {text}")
        else:
            order(self, argument)
        self.say(type="system", subtype="session_state_changed", state="idle", sdk_host_only=True)

    def assistant(self, *blocks: dict[str, Any], error: str | None = None) -> None:
        """Say something as the model."""
        message = {"id": new_id(), "model": "fake", "role": "assistant", "content": list(blocks), "usage": {}}
        more = {"error": error} if error else {}
        self.say(type="assistant", message=message, parent_tool_use_id=None, **more)

    def result(self, text: str | None = None, *, is_error: bool = False, **more: Any) -> None:
        """End the turn."""
        about: dict[str, Any] = {"subtype": "success", "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, **more}
        if text is not None:
            about["result"] = text
        if "origin" not in about:
            self.failed = is_error
            self.note("turn_end", text=self.text)  # before it is told: whoever hears of it may look here
        self.say(type="result", is_error=is_error, total_cost_usd=0, usage={}, **about)

    def say(self, **message: Any) -> None:
        """Write a message to stdout."""
        if message["type"] not in ("control_response",):
            message = {"session_id": self.session, "uuid": new_id(), **message}
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def note(self, event: str, **about: Any) -> None:
        """Write to the journal, each line in one step."""
        if self.journal_path is not None:
            line = json.dumps({"event": event, "session": self.session, **about}) + "\n"
            descriptor = os.open(self.journal_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, line.encode())
            os.close(descriptor)

    def known_sessions(self) -> set[str]:
        """Return the sessions that can be resumed."""
        try:
            with open(self.sessions_path) as file:
                return set(file.read().split())
        except FileNotFoundError:
            return set()

    # The orders

    def do_blocks(self, argument: str) -> None:
        """Say several things, use a tool, and answer ``done``."""
        self.assistant({"type": "text", "text": "first"})
        self.assistant({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}})
        self.assistant({"type": "text", "text": "second"}, {"type": "text", "text": "third"})
        self.result("done", num_turns=3)

    def do_talk(self, argument: str) -> None:
        """Say and do several things, and answer when a file is there."""
        self.assistant({"type": "text", "text": "first"})
        self.assistant({"type": "text", "text": "second"})
        self.assistant({"type": "tool_use", "id": "t1", "name": "Read", "input": {}})
        self.note("talked")
        self.do_wait(argument)

    def do_refuse_until(self, argument: str) -> None:
        """End the turn with an error until a file is there."""
        if os.path.exists(argument):
            self.result("accepted")
        else:
            self.do_error("")

    def do_silent(self, argument: str) -> None:
        """Say nothing until interrupted."""
        while (line := self.read()) is not None:
            self.control(line)
            if line["request"]["subtype"] == "interrupt":
                self.result(is_error=True, subtype="error_during_execution", terminal_reason="aborted_streaming")
                return

    def do_deaf(self, argument: str) -> None:
        """Say nothing, and hear nothing: no interrupt, no end of input, no SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.note("deaf", pid=os.getpid())
        while True:
            signal.pause()

    def do_grandchild(self, argument: str) -> None:
        """Start a process in a session of its own that ignores SIGTERM; say nothing, ``answer``, or be ``deaf``."""
        import subprocess  # not at the top: every start would pay for it

        child = subprocess.Popen(
            [sys.executable, "-IS", "-c", _STUBBORN], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert child.stdout is not None
        self.note("grandchild", pid=int(child.stdout.readline()), parent=os.getpid())
        if argument == "answer":
            self.result("started")
        elif argument == "deaf":
            self.do_deaf("")
        else:
            self.do_silent("")

    def do_wait(self, argument: str) -> None:
        """Answer when a file is there."""
        while not os.path.exists(argument):
            select.select([], [], [], 0.01)
        self.result(f"waited for {os.path.basename(argument)}")

    def do_noise(self, argument: str) -> None:
        """Write a line that is no message, and answer."""
        sys.stdout.write("[debug] not a message\n")
        self.say(type="something_new", value=1)
        self.result("after the noise")

    def do_garbage(self, argument: str) -> None:
        """Write half a message, with a secret."""
        sys.stdout.write('{"type": "assistant", "secret-in-garbage\n')
        sys.stdout.flush()
        self.do_silent("")

    def do_malformed(self, argument: str) -> None:
        """Write a message without its parts."""
        self.say(type="assistant", text="secret-in-garbage")
        self.do_silent("")

    def do_exit(self, argument: str) -> None:
        """Crash in the middle of the stream."""
        self.assistant({"type": "text", "text": "about to crash"})
        os._exit(int(argument))

    def do_huge(self, argument: str) -> None:
        """Answer with so many characters."""
        self.result("é\n" * (int(argument) // 2))

    def do_broken(self, argument: str) -> None:
        """Say and answer half a character."""
        self.assistant({"type": "text", "text": "half \ud83d"})
        self.result("half \ud83d")

    def do_error(self, argument: str) -> None:
        """End the turn with an error."""
        self.result(is_error=True, subtype="error_during_execution", errors=["secret-in-garbage"])

    def do_maxturns(self, argument: str) -> None:
        """Run out of turns."""
        self.result(is_error=True, subtype="error_max_turns", num_turns=4, terminal_reason="max_turns")

    def do_auth(self, argument: str) -> None:
        """Be logged out."""
        text = "Not logged in · Please run /login"
        self.assistant({"type": "text", "text": text}, error="authentication_failed")
        self.result(text, is_error=True, terminal_reason="api_error")

    def do_limit(self, argument: str) -> None:
        """Be refused by the API: at once; ``late``, with something said before; or ``once``, the first time only."""
        if argument == "once" and any("limited" in session for session in self.known_sessions()):
            self.result("no limit any more")
            return
        with open(self.sessions_path, "a") as file:
            file.write("limited\n")
        if argument == "late":
            self.assistant({"type": "text", "text": "I have begun"})
        self.assistant({"type": "text", "text": "API Error: 429"}, error="rate_limit")
        self.result("API Error: 429", is_error=True, api_error_status=429, terminal_reason="api_error")

    def do_api(self, argument: str) -> None:
        """Be failed by the API with a status."""
        self.assistant({"type": "text", "text": "API Error"}, error="server_error")
        self.result("API Error", is_error=True, api_error_status=int(argument), terminal_reason="api_error")

    def do_background(self, argument: str) -> None:
        """Report from a background task first."""
        about = {"role": "user", "content": "the task is done"}
        self.say(type="user", message=about, parent_tool_use_id=None, origin={"kind": "task-notification"})
        self.assistant({"type": "text", "text": "words of the background task"})
        self.result("of the background task", origin={"kind": "task-notification"})
        self.result("of the turn")

    def do_linger(self, argument: str) -> None:
        """Answer, then report from a background task until a file is there."""
        self.result("answered")
        self.assistant({"type": "text", "text": "words of the background task"})
        self.note("lingers")
        while not os.path.exists(argument):
            select.select([], [], [], 0.01)
        self.assistant({"type": "text", "text": "more words of the background task"})
        self.result("of the background task", origin={"kind": "task-notification"})

    def do_wordless(self, argument: str) -> None:
        """Answer without a text."""
        self.result("")


ORDERS: dict[str, Callable[[Program, str], None]] = {
    name.removeprefix("do_").replace("_", "-"): order for name, order in vars(Program).items() if name.startswith("do_")
}


def main() -> int:
    """Run."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"{VERSION}\n")
        return 0
    return Program(sys.argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main())

"""Hooks for tests: the real command in a process of its own, with an agent's JSON on stdin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kit.cli import Ran, Relay


class Agent:
    """An agent on the bus, in a session of its own."""

    def __init__(self, relay: Relay, subject: str, state: Path, session: str = "s-1") -> None:
        self.relay = relay
        self.subject = subject
        self.state = state
        self.session = session

    def again(self, session: str) -> Agent:
        """Return the same agent in another session."""
        return Agent(self.relay, self.subject, self.state, session)

    def hook(self, said: Any, *args: str, code: int = 0, **environment: str) -> Ran:
        """Run the hook with something on stdin."""
        stdin = said if isinstance(said, str) else json.dumps(said)
        environment = {"XDG_STATE_HOME": str(self.state), **environment}
        return self.relay.real("hook", "--as", self.subject, *args, stdin=stdin, code=code, environment=environment)

    def event(self, name: str, **more: Any) -> dict[str, Any]:
        """Return what Claude Code says of an event."""
        return {"hook_event_name": name, "session_id": self.session, "cwd": "/", **more}

    def start(self) -> str:
        """Begin a session; return what it is shown."""
        return self._context(self.hook(self.event("SessionStart", source="startup")))

    def prompt(self, text: str = "go on") -> str:
        """Type a prompt; return what is shown with it."""
        return self._context(self.hook(self.event("UserPromptSubmit", prompt=text)))

    def stop(self, *, active: bool = False) -> str:
        """Stop; return the reason to go on."""
        out = self.hook(self.event("Stop", stop_hook_active=active)).out
        if not out:
            return ""
        said = json.loads(out)
        assert said.keys() == {"decision", "reason"}
        assert said["decision"] == "block"
        return str(said["reason"])

    def mail(self, text: str, sender: str = "relay.agent.other") -> str:
        """Send it a message and return the message's id."""
        return self.relay.publish(self.subject, {"content": text}, sender)

    @staticmethod
    def _context(ran: Ran) -> str:
        return str(json.loads(ran.out)["hookSpecificOutput"]["additionalContext"]) if ran.out else ""


def fenced(text: str) -> Iterator[str]:
    """Yield what stands between the marks of a text, as a careful reader would find it."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("<<<text-"):
            closing = line.removeprefix("<<<") + ">>>"
            inside = []
            while (line := next(lines)) != closing:
                inside.append(line)
            yield "\n".join(inside)

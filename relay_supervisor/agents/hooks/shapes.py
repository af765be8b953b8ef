"""The input and output formats of the common agents' hooks.

1. The event's name identifies the agent: `Stop` is Claude Code or Codex, `AfterAgent` Gemini CLI, lower-case `stop`
   Cursor, and the key `hookEventName` VS Code. So one command line serves them all.
2. If the agent names no event, the command line does, and the output is plain text.
3. Where an agent accepts no text (Cursor and VS Code at a prompt) nothing is shown or recorded as shown.
"""

from __future__ import annotations

import json

from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

START, PROMPT, STOP = "start", "prompt", "stop"

EVENTS = {"session-start": START, "prompt": PROMPT, "stop": STOP}
"""The events by their names on the command line."""

_NAMES = {
    "SessionStart": START,
    "UserPromptSubmit": PROMPT,
    "Stop": STOP,
    "BeforeAgent": PROMPT,
    "AfterAgent": STOP,
    "sessionStart": START,
    "beforeSubmitPrompt": PROMPT,
    "stop": STOP,
}
_CURSOR = frozenset({"sessionStart", "beforeSubmitPrompt", "stop"})
_SESSIONS = ("conversation_id", "session_id", "sessionId")


class Unusable(Exception):
    """The agent's input cannot be used; the message says why."""


class Event:
    """An event in an agent's session."""

    def __init__(self, kind: str, name: str, shape: str, session: str, prompt: str, aborted: bool) -> None:
        self.kind = kind
        """`start`, `prompt` or `stop`."""
        self.name = name
        """The agent's name for it, or empty."""
        self.shape = shape
        """The output format: `claude`, `gemini`, `cursor`, `vscode` or `plain`."""
        self.session = session
        """The session's id, or empty."""
        self.prompt = prompt
        """The text of a prompt."""
        self.aborted = aborted
        """True if the user aborted the turn: then the agent must not continue."""

    @property
    def takes_text(self) -> bool:
        """True if the agent accepts text at this event."""
        return not (self.aborted or (self.kind == PROMPT and self.shape in ("cursor", "vscode")))


def read_event(data: bytes, given: str | None) -> Event:
    """Return the event in an agent's JSON, or the one that the command line names.

    Raises:
        Unusable: if there is no valid event.
    """
    document = _document(data)
    session = next((found for name in _SESSIONS if (found := _text(document, name))), "")
    name, shape = document.get("hook_event_name"), ""
    if name is None and "hookEventName" in document:
        name, shape = document["hookEventName"], "vscode"
    if name is None:
        if given not in EVENTS:
            raise Unusable(f"no event: pass the agent's JSON on stdin, or name one of {', '.join(EVENTS)}")
        return Event(EVENTS[given], "", "plain", session, _text(document, "prompt"), False)
    if not isinstance(name, str) or name not in _NAMES:
        raise Unusable(f"unknown event {name!r}: expected one of {', '.join(_NAMES)}")
    aborted = document.get("status", "completed") != "completed"
    shape = shape or ("cursor" if name in _CURSOR else "gemini" if name == "AfterAgent" else "claude")
    return Event(_NAMES[name], name, shape, session, _text(document, "prompt"), aborted)


def answer(event: Event, text: str) -> str:
    """Return the output that makes the agent read a text, and at a stop continue with it."""
    return (text if event.shape == "plain" else json.dumps(_output(event, text))) + "\n"


def _output(event: Event, text: str) -> dict[str, Any]:
    if event.shape == "cursor":
        return {"followup_message" if event.kind == STOP else "additional_context": text}
    if event.kind != STOP:
        return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": text}}
    if event.shape == "vscode":
        return {"hookSpecificOutput": {"hookEventName": event.name, "decision": "block", "reason": text}}
    return {"decision": "deny" if event.shape == "gemini" else "block", "reason": text}


def _document(data: bytes) -> dict[str, Any]:
    if not data.strip():
        return {}
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Unusable("stdin is not valid JSON") from None
    if not isinstance(document, dict):
        raise Unusable("stdin is not a JSON object")
    return document


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""

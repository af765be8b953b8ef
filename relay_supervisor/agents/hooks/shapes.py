"""What the hooks of the common agents say and expect: which event it is, and how an answer must look.

1. The agent is known by the words it uses. `Stop` is Claude Code's and Codex's, `AfterAgent` Gemini CLI's, `stop` with
   a small letter Cursor's, and whoever writes `hookEventName` is VS Code. One command line serves them all.
2. An agent that names no event is told by the command line which it is, and gets plain text.
3. Where an agent takes no text (Cursor and VS Code at a prompt) nothing is shown, and so nothing counts as shown.
"""

from __future__ import annotations

import json

from relay_supervisor.agents.light import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

START, PROMPT, STOP = "start", "prompt", "stop"

EVENTS = {"session-start": START, "prompt": PROMPT, "stop": STOP}
"""What an event is called on the command line."""

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
    """What the agent says cannot be used; the text says why."""


class Event:
    """Something that happens in an agent's session."""

    def __init__(self, kind: str, name: str, shape: str, session: str, prompt: str, over: bool) -> None:
        self.kind = kind
        """`start`, `prompt` or `stop`."""
        self.name = name
        """What the agent calls it; empty if it has no word for it."""
        self.shape = shape
        """Whose shape an answer must have."""
        self.session = session
        """The session's id; empty if the agent names none."""
        self.prompt = prompt
        """What was typed, at a prompt."""
        self.over = over
        """Whether somebody has broken it off: then the agent is not sent on."""

    @property
    def takes_text(self) -> bool:
        """Whether the agent would read what it is told now."""
        return not (self.over or (self.kind == PROMPT and self.shape in ("cursor", "vscode")))


def read_event(data: bytes, given: str | None) -> Event:
    """Return the event that an agent's JSON tells of, or the one that the command line names.

    Raises:
        Unusable: if neither makes sense.
    """
    said = _document(data)
    name, shape = said.get("hook_event_name"), ""
    if name is None and "hookEventName" in said:
        name, shape = said["hookEventName"], "vscode"
    if name is None:
        if given not in EVENTS:
            raise Unusable(f"no event: it is on stdin, as the agents put it there, or one of {', '.join(EVENTS)}")
        return Event(EVENTS[given], "", "plain", _session(said), _text(said, "prompt"), False)
    if not isinstance(name, str) or name not in _NAMES:
        raise Unusable(f"nothing is done at {name!r}: only at {', '.join(_NAMES)}")
    over = said.get("status", "completed") != "completed"
    shape = shape or ("cursor" if name in _CURSOR else "gemini" if name == "AfterAgent" else "claude")
    return Event(_NAMES[name], name, shape, _session(said), _text(said, "prompt"), over)


def answer(event: Event, text: str) -> str:
    """Return what the agent must be told so that it reads a text, and at a stop goes on with it."""
    if event.shape == "plain":
        return text + "\n"
    return json.dumps(_cursor(event, text) if event.shape == "cursor" else _claude(event, text)) + "\n"


def _cursor(event: Event, text: str) -> dict[str, Any]:
    return {"followup_message" if event.kind == STOP else "additional_context": text}


def _claude(event: Event, text: str) -> dict[str, Any]:
    if event.kind != STOP:
        return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": text}}
    if event.shape == "vscode":
        return {"hookSpecificOutput": {"hookEventName": event.name, "decision": "block", "reason": text}}
    return {"decision": "deny" if event.shape == "gemini" else "block", "reason": text}


def _document(data: bytes) -> dict[str, Any]:
    if not data.strip():
        return {}
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        raise Unusable("what is on stdin is no JSON") from None
    if not isinstance(said, dict):
        raise Unusable("what is on stdin is no JSON object")
    return said


def _session(said: dict[str, Any]) -> str:
    return next((found for name in _SESSIONS if (found := _text(said, name))), "")


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""

"""From the stream of one turn to its outcome.

1. The turn is over with the program's result, or with its end. A turn of the program's own (a background task that
   reports back) may be under way when ours is asked for, or come before it: it is known by the program being busy, by
   the origin of what it was asked, and by that of its result. Up to that result nothing that is said is ours: it
   belongs to what somebody else has asked, and is no progress and no answer of this turn.
2. A turn that the platform refused before the agent had said or done anything may be asked again, after a time that is
   never longer than `LONGEST_RETRY_SECS`; after that, never: nobody could tell what was done. To think is not to do.
3. An outcome's error has words of ours and codes of the program: never its texts, which may quote the message or a
   secret. The session's id in it leads to the transcript.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeSDKError,
    CLIConnectionError,
    ProcessError,
    RateLimitEvent,
    ResultError,
    ResultMessage,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    UserMessage,
)

SESSION_GONE = "session_gone"

_GONE = "No conversation found"
_BUSY_STATUSES = (429, 529)
_RETRY_SECS = 60.0
LONGEST_RETRY_SECS = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn went."""

    text: str = ""
    """The answer, of a turn that went well."""
    error: str | None = None
    code: str | None = None
    retry_after: float | None = None
    turns: int = 0
    """Model turns that it took."""


class TurnReader:
    """Read the messages of one turn; `busy` tells that the program was at work of its own when it was asked."""

    def __init__(self, on_progress: Callable[[str], None], now_ms: Callable[[], int], *, busy: bool = False) -> None:
        self._on_progress = on_progress
        self._now_ms = now_ms
        self._others = busy
        """Whether what is said belongs to another turn."""
        self._last_text = ""
        self._acted = False
        self._error: str | None = None
        """The program's word for what the platform refused."""
        self._resets_at: Any = None

    def feed(self, message: Any) -> Outcome | None:
        """Take one message; return the outcome once there is one."""
        match message:
            case AssistantMessage(parent_tool_use_id=None):
                self._hear(message)
            case RateLimitEvent() if message.rate_limit_info.status == "rejected":
                self._resets_at = message.rate_limit_info.resets_at
            case UserMessage() if not _is_ours(message):
                self._others = True
            case ResultMessage() if _is_ours(message):
                return self._conclude(message)
            case ResultMessage():
                self._others = self._acted = False
                self._error = None
                self._last_text = ""
        return None

    def _hear(self, message: AssistantMessage) -> None:
        if message.error is not None:
            self._error = message.error
            return  # its text is the error's
        for block in message.content:
            if isinstance(block, ThinkingBlock) or (isinstance(block, TextBlock) and not block.text.strip()):
                continue
            self._acted = True  # whoever's turn it is: a program may take up our message in the middle of its own
            if self._others:
                continue
            if isinstance(block, TextBlock):
                self._last_text = _mend(block.text)
                self._on_progress(self._last_text)
            elif isinstance(block, ToolUseBlock | ServerToolUseBlock):
                self._on_progress(f"uses {_mend(block.name)}")

    def _conclude(self, result: ResultMessage) -> Outcome:
        if not result.is_error:
            text = _mend(result.result) if result.result else self._last_text
            return Outcome(text or "(the agent ended its turn without a text)", turns=result.num_turns)
        session = f"session {result.session_id}"
        if any(_GONE in error for error in result.errors or ()):
            return Outcome(error=f"{session} is not there any more", code=SESSION_GONE)
        if result.subtype == "error_max_turns":
            return Outcome(
                error=f"no answer within {result.num_turns} model turns: raise maxTurns, or the message's call budget "
                f"({session})",
                code="max_turns",
                turns=result.num_turns,
            )
        status = result.api_error_status
        if self._error == "rate_limit" or status in _BUSY_STATUSES:
            return self._busy(session, status)
        if self._error == "authentication_failed" or status == 401:
            return Outcome(
                error="Claude Code is not logged in: run 'claude' as the supervisor's user and /login, "
                "or give the agent an ANTHROPIC_API_KEY in env",
                code="authentication_failed",
            )
        if self._error == "billing_error":
            return Outcome(error="the Claude account cannot be billed: look at its plan and credit", code=self._error)
        why = result.subtype if result.subtype != "success" else result.terminal_reason or "error"
        code = str(status) if status is not None else self._error or why
        return Outcome(error=f"the turn ended with an error ({session})", code=code, turns=result.num_turns)

    def _busy(self, session: str, status: int | None) -> Outcome:
        error = f"the Claude API takes no more for now ({session})"
        code = str(status) if status is not None else "rate_limit"
        if self._acted:
            return Outcome(error=f"{error}; the turn had begun, so it is not tried again by itself", code=code)
        return Outcome(error=error, code=code, retry_after=self._wait())

    def _wait(self) -> float:
        """Return the seconds after which to ask again; the program's word for it is foreign JSON."""
        now = self._now_ms() / 1000
        resets_at = self._resets_at
        if not isinstance(resets_at, int | float) or not resets_at > now:  # nor NaN
            return _RETRY_SECS
        if resets_at > now + LONGEST_RETRY_SECS:
            return LONGEST_RETRY_SECS
        return max(resets_at - now, 1.0)


def _is_ours(message: UserMessage | ResultMessage) -> bool:
    """Tell whether a message belongs to a turn that was asked for, not to one that the program began by itself."""
    return message.origin is None or message.origin["kind"] == "human"


def _mend(text: str) -> str:
    """Return a text that can be written as JSON: half a character, where the program has cut one, cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def explain_end(error: Exception | None) -> Outcome:
    """Return the outcome of a turn, or of a start, whose program has ended or talks nonsense."""
    if isinstance(error, ResultError):
        if any(_GONE in text for text in error.errors):
            return Outcome(error=f"session {error.session_id} is not there any more", code=SESSION_GONE)
        return Outcome(error=f"Claude Code ended with an error: {error.subtype or 'unknown'}", code="program_ended")
    if isinstance(error, ProcessError):
        return Outcome(
            error=f"Claude Code ended with exit code {error.exit_code} before the result", code="program_ended"
        )
    if isinstance(error, ClaudeSDKError) and not isinstance(error, CLIConnectionError):
        return Outcome(
            error="Claude Code sent a message that cannot be read: is its version a known one?", code="protocol"
        )
    if error is None:
        return Outcome(error="Claude Code ended before the result", code="program_ended")
    return Outcome(error=f"Claude Code could not be spoken to: {type(error).__name__}", code="program_failed")

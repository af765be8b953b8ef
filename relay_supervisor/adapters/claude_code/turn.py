"""Reads the stream of a turn and determines its outcome.

1. A turn ends with the program's result, or with the program. A turn that the program started itself (a background task
   that reports back) may be running when ours starts, or come before it: it is recognised by the program being busy,
   by the origin of its prompt, and by that of its result. Until that result, no output is progress or an answer of our
   turn.
2. A turn that the platform refused before the agent said or did anything may be retried, after at most
   `LONGEST_RETRY_SECS`. Later it may not, since its effects are unknown. Thinking has no effect.
3. An outcome's error has our own words and the program's codes, never its texts, which may quote the message or a
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
    """The result of a turn."""

    text: str = ""
    """The answer of a successful turn."""
    error: str | None = None
    code: str | None = None
    retry_after: float | None = None
    turns: int = 0
    """Model turns used."""


class TurnReader:
    """Read the messages of one turn; `busy` means that the program was running its own turn when ours started."""

    def __init__(self, on_progress: Callable[[str], None], now_ms: Callable[[], int], *, busy: bool = False) -> None:
        self._on_progress = on_progress
        self._now_ms = now_ms
        self._foreign = busy
        """True while the output belongs to another turn."""
        self._last_text = ""
        self._acted = False
        self._error: str | None = None
        """The program's code for the platform's refusal."""
        self._resets_at: Any = None

    def feed(self, message: Any) -> Outcome | None:
        """Read one message; return the outcome once it is known."""
        match message:
            case AssistantMessage(parent_tool_use_id=None):
                self._read_output(message)
            case RateLimitEvent() if message.rate_limit_info.status == "rejected":
                self._resets_at = message.rate_limit_info.resets_at
            case UserMessage() if not _is_ours(message):
                self._foreign = True
            case ResultMessage() if _is_ours(message):
                return self._conclude(message)
            case ResultMessage():
                self._foreign = self._acted = False
                self._error = None
                self._last_text = ""
        return None

    def _read_output(self, message: AssistantMessage) -> None:
        if message.error is not None:
            self._error = message.error
            return  # its text is the error's
        for block in message.content:
            if isinstance(block, ThinkingBlock) or (isinstance(block, TextBlock) and not block.text.strip()):
                continue
            self._acted = True  # in any turn: a program may read our message in the middle of its own
            if self._foreign:
                continue
            if isinstance(block, TextBlock):
                self._last_text = _replace_surrogates(block.text)
                self._on_progress(self._last_text)
            elif isinstance(block, ToolUseBlock | ServerToolUseBlock):
                self._on_progress(f"uses {_replace_surrogates(block.name)}")

    def _conclude(self, result: ResultMessage) -> Outcome:
        if not result.is_error:
            text = _replace_surrogates(result.result) if result.result else self._last_text
            return Outcome(text or "(the agent ended its turn without a text)", turns=result.num_turns)
        session = f"session {result.session_id}"
        if any(_GONE in error for error in result.errors or ()):
            return Outcome(error=f"{session} no longer exists", code=SESSION_GONE)
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
            return Outcome(error="the Claude account cannot be billed: check its plan and credit", code=self._error)
        why = result.subtype if result.subtype != "success" else result.terminal_reason or "error"
        code = str(status) if status is not None else self._error or why
        return Outcome(error=f"the turn ended with an error ({session})", code=code, turns=result.num_turns)

    def _busy(self, session: str, status: int | None) -> Outcome:
        error = f"the Claude API accepts no more requests for now ({session})"
        code = str(status) if status is not None else "rate_limit"
        if self._acted:
            return Outcome(error=f"{error}; the turn had started, so it is not retried", code=code)
        return Outcome(error=error, code=code, retry_after=self._wait())

    def _wait(self) -> float:
        """Return the seconds until a retry; the program's value is untrusted JSON."""
        now = self._now_ms() / 1000
        resets_at = self._resets_at
        if not isinstance(resets_at, int | float) or not resets_at > now:  # nor NaN
            return _RETRY_SECS
        if resets_at > now + LONGEST_RETRY_SECS:
            return LONGEST_RETRY_SECS
        return max(resets_at - now, 1.0)


def _is_ours(message: UserMessage | ResultMessage) -> bool:
    """Return True if a message belongs to a turn that we started, not to one that the program started itself."""
    return message.origin is None or message.origin["kind"] == "human"


def _replace_surrogates(text: str) -> str:
    """Return a text that can be encoded as UTF-8; the program may have cut a character in half."""
    return text.encode("utf-8", "replace").decode("utf-8")


def explain_end(error: Exception | None) -> Outcome:
    """Return the outcome of a turn, or of a start, whose program has ended or sent invalid output."""
    if isinstance(error, ResultError):
        if any(_GONE in text for text in error.errors):
            return Outcome(error=f"session {error.session_id} no longer exists", code=SESSION_GONE)
        return Outcome(error=f"Claude Code ended with an error: {error.subtype or 'unknown'}", code="program_ended")
    if isinstance(error, ProcessError):
        return Outcome(
            error=f"Claude Code ended with exit code {error.exit_code} before the result", code="program_ended"
        )
    if isinstance(error, ClaudeSDKError) and not isinstance(error, CLIConnectionError):
        error_text = "Claude Code sent a message that cannot be parsed: is its version supported?"
        return Outcome(error=error_text, code="protocol")
    if error is None:
        return Outcome(error="Claude Code ended before the result", code="program_ended")
    return Outcome(error=f"Claude Code cannot be reached: {type(error).__name__}", code="program_failed")

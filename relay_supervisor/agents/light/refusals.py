"""Errors and outcomes in words that a model can act on: what happened, and what to do next."""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.fence import one_line
from relay_supervisor.agents.light.sync_connection import Refused, Unreachable

if TYPE_CHECKING:
    from typing import Any

    from relay_supervisor.agents.light.upstream import Ask

_NO_CONSUMER = "no agent has the subject {to}. Find agents with relay_list."
_REASONS = {
    "rate_limited": "you send too many messages: wait a minute, and send fewer.",
    "circuit_open": "{to} has failed repeatedly and is paused: try again once, in a minute.",
    "backpressure": "the mailbox of {to} is full: it does not read its mail. Do not send more; tell your user.",
    "budget_exceeded": (
        "the loop guard has stopped this: the conversation has used up its budget, or has returned to an agent that "
        "already had it. Do not try again or rephrase it; tell your user. Use new_topic only if a person has just "
        "asked you for this."
    ),
}
_DENIED = "Do not try again: the operator decides who may write to whom."
_NO_TOKEN = "Tell your user: this session's token is not valid, and 'relay agent add' creates a new one."
_TOKEN_CODES = frozenset({"bad_token", "token_required", "sender_not_yours", "subject_not_yours"})


class Failure(Exception):
    """A tool call failed; the message is for the model."""


def explain_undelivered(result: dict[str, Any], to: str) -> str | None:
    """Return why a message was not delivered, or None if it was."""
    if result.get("deliveredTo"):
        return None
    to = one_line(to)
    reasons = {str(rejection.get("reason")) for rejection in result.get("rejected") or ()}
    texts = [_REASONS.get(reason, one_line(reason)).format(to=to) for reason in sorted(reasons)]
    texts += [f"{to} could not be reached: {error}." for error in _adapter_errors(result)]
    return f"Not delivered: {' '.join(texts) or _NO_CONSUMER.format(to=to)}"


def describe_delivery(result: dict[str, Any]) -> str:
    """Return the outcome of a message that was delivered."""
    count = result["deliveredTo"]
    text = f"Sent as message {result['messageId']}" + (f" to {count}" if count > 1 else "")
    failed = [str(rejection.get("reason")) for rejection in result.get("rejected") or ()] + _adapter_errors(result)
    if failed:
        text += f"; some recipients did not get it ({one_line(', '.join(failed))})"
    fullest = max((result.get("mailboxPressure") or {}).values(), default=0.0)
    if fullest >= 0.8:
        text += f"; the mailbox is {fullest:.0%} full, do not send much more"
    return f"{text}."


def explain(error: Exception) -> str:
    """Return an error as a text for the model."""
    if isinstance(error, Failure):
        return str(error)
    if isinstance(error, Unreachable):
        return f"Relay is not reachable: {error}. Tell your user; an immediate retry does not help."
    if isinstance(error, Refused):
        advice = _DENIED if error.data.get("error") == "AccessDenied" else ""
        if error.code in _TOKEN_CODES:
            advice = _NO_TOKEN
        return f"Refused: {one_line(error.message, 1000)}. {advice}".strip()
    return f"Bug in Relay's MCP server: {type(error).__name__}: {one_line(error)}"


def explain_unsent(error: Unreachable, request: Ask) -> Failure:
    """Return the failure of a send without an answer: the message may have been sent."""
    if request.times:
        return Failure(f"This may or may not have been sent: {error}. Find out before you send it again.")
    return Failure(f"Not sent: {error}. Tell your user; an immediate retry does not help.")


def _adapter_errors(result: dict[str, Any]) -> list[str]:
    adapters = result.get("adapterResults") or ()
    failed = [adapter for adapter in adapters if adapter.get("status") in ("failed", "refused")]
    return [one_line(adapter.get("error") or adapter.get("status")) for adapter in failed]

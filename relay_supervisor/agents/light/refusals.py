"""Why something was not done, in words that a model can act on: what happened, and what to do or not to do next."""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.fence import one_line
from relay_supervisor.agents.light.sync_connection import Refused, Unreachable

if TYPE_CHECKING:
    from typing import Any

    from relay_supervisor.agents.light.upstream import Ask

NO_SUPERVISOR = "nobody has the subject {to}. relay_list shows who is there."
LOOP = (
    "the loop guard has stopped this: the conversation that it follows from has used up its budget, or comes round to "
    "somebody who has had it already. Do not try again, also not in other words; tell your user. Only if a person has "
    "just asked you for this: new_topic."
)
_REASONS = {
    "rate_limited": "you send too much: wait a minute, and send less.",
    "circuit_open": "{to} has failed repeatedly and is given a rest: try again in a minute, once.",
    "backpressure": "the mailbox of {to} is full: it does not read its mail. Do not send more; tell your user.",
    "budget_exceeded": LOOP,
}
_DENIED = "Do not try again: what may be written to whom is the operator's to decide."
_NO_TOKEN = "Tell your user: this session's token will not do, and 'relay agent add' gives the agent a good one."
_TOKEN_CODES = frozenset({"bad_token", "token_required", "sender_not_yours", "subject_not_yours"})


class Failure(Exception):
    """A tool that did not do what it was asked; the text is for the model."""


def explain_undelivered(result: dict[str, Any], to: str) -> str | None:
    """Return why nobody took a message, or None if somebody did."""
    if result.get("deliveredTo"):
        return None
    to = one_line(to)
    reasons = {str(one.get("reason")) for one in result.get("rejected") or ()}
    words = [_REASONS.get(reason, one_line(reason)).format(to=to) for reason in sorted(reasons)]
    words += [f"{to} could not be reached: {error}." for error in _adapter_errors(result)]
    return f"Not delivered: {' '.join(words) or NO_SUPERVISOR.format(to=to)}"


def describe_delivery(result: dict[str, Any]) -> str:
    """Return what became of a message that somebody took."""
    count = result["deliveredTo"]
    text = f"Sent as message {result['messageId']}" + (f" to {count}" if count > 1 else "")
    others = [str(one.get("reason")) for one in result.get("rejected") or ()] + _adapter_errors(result)
    if others:
        text += f"; not everybody took it ({one_line(', '.join(others))})"
    fullest = max((result.get("mailboxPressure") or {}).values(), default=0.0)
    if fullest >= 0.8:
        text += f"; the mailbox is {fullest:.0%} full, do not send much more"
    return f"{text}."


def explain(error: Exception) -> str:
    """Return what to tell a model about an error."""
    if isinstance(error, Failure):
        return str(error)
    if isinstance(error, Unreachable):
        return f"Relay is not there: {error}. Tell your user; trying again at once does not help."
    if isinstance(error, Refused):
        advice = _DENIED if error.data.get("error") == "AccessDenied" else ""
        if error.code in _TOKEN_CODES:
            advice = _NO_TOKEN
        return f"Refused: {one_line(error.message, 1000)}. {advice}".strip()
    return f"Relay's MCP server has a defect: {type(error).__name__}: {one_line(error)}"


def explain_unsent(error: Unreachable, question: Ask) -> Failure:
    """Return what to tell a model whose message may not have been sent."""
    if question.times:
        return Failure(
            f"It is not known whether this was sent: {error}. Do not send it again before you have found out."
        )
    return Failure(f"Not sent: {error}. Tell your user; trying again at once does not help.")


def _adapter_errors(result: dict[str, Any]) -> list[str]:
    results = result.get("adapterResults") or ()
    return [
        one_line(one.get("error") or one.get("status")) for one in results if one.get("status") in ("failed", "refused")
    ]

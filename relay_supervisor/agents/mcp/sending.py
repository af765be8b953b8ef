"""The tools that send: `relay_send`, `relay_ask` and `relay_notify_user`.

1. The sender is always the session's agent. What follows from what is handled.py's to say.
2. A message is published once, whatever is lost on the way: every retry is the same publish to the supervisor.
3. Nothing is taken before it is needed: the answer that `relay_ask` waits for stays in the mailbox until it was
   written out, whatever becomes of the call, the client or the supervisor before that.
4. An answer is the child of the message that it answers. A question, and what is handed on to somebody else, have the
   budget of the message that the agent is handling, but are no children of it: the agent is among that message's
   ancestors, and the bus would take what comes back for a loop. Hops, calls and time shrink all the same.
"""

from __future__ import annotations

import os

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.fence import Fence, is_cut, one_line, show_message
from relay_supervisor.agents.light.refusals import (
    Failure,
    describe_delivery,
    explain,
    explain_undelivered,
    explain_unsent,
)
from relay_supervisor.agents.light.sync_connection import Refused, Unreachable
from relay_supervisor.agents.light.upstream import Ask
from relay_supervisor.agents.mcp.agent import Say
from relay_supervisor.agents.mcp.tools import USUAL_WAIT_SECS

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from relay_supervisor.agents.mcp.agent import Agent, Arguments, Steps

_NEIGHBOURS = 32
"""So many ids differ in their last letter alone: a message is among the first so many after the rest of its id."""
_WAIT_SECS = 5.0
"""A wait is asked for in pieces, so that one that nobody needs any more does not stay for long."""


def send(agent: Agent, arguments: Arguments) -> Steps:
    """Send a message."""
    result = yield from _publish(agent, arguments["to"], arguments, "inform", agent.parent(arguments))
    return describe_delivery(result)


def ask(agent: Agent, arguments: Arguments) -> Steps:
    """Send a message and wait for the answer."""
    to, secs = arguments["to"], arguments.get("timeout_secs", USUAL_WAIT_SECS)
    until = agent.monotonic() + secs
    result = yield from _publish(agent, to, arguments, "request", agent.parent(arguments))
    asked = result["messageId"]
    answer_id = answer = None
    try:
        answer_id = yield from _wait_for_answer(agent, asked, until)
        if answer_id is not None:
            answer = yield from _look_up(agent, answer_id)
    except Unreachable:
        answer = None
    except Refused as error:
        raise Failure(f"Your message {asked} is delivered; do not ask again. The answer: {explain(error)}") from None
    if answer_id is None:
        return (
            f"No answer within {secs} s. Your message {asked} is delivered, and {one_line(to)} may still answer: that "
            "will come to your inbox (relay_inbox). Do not ask again."
        )
    if answer is None:
        return (
            f"The answer {answer_id} to your message {asked} has come: to your inbox, or to another session of yours."
        )
    agent.read(answer, handle=False)
    failed = _is_failure(answer)
    head = f"Your message {asked} was not handled. Why:\n" if failed else _head(asked, to, str(answer.get("from")))
    tail = "\nIt stays in your inbox: relay_ack it." if is_cut(answer) else ""
    yield Say(f"{head}{show_message(answer, Fence())}{tail}", is_error=failed)
    if not tail:
        yield agent.claim([answer_id])
        yield Ask("inbox.complete", {"subject": agent.subject, "id": answer_id, "late": True})
    return ""


def notify(agent: Agent, arguments: Arguments) -> Steps:
    """Write to every person whom the agent may write to; also when the budget of a conversation is used up."""
    people = (yield Ask("agents.people", {"subject": agent.subject}))["people"]
    if not people:
        raise Failure(
            f"There is no way to your user yet. The operator makes one: a binding for {agent.subject} in adapters.json "
            "(docs/adapters)."
        )
    lines = []
    wrong = 0
    for person in people:
        try:
            yield from _publish(agent, person, arguments, "inform", None)
            lines.append(f"{one_line(person)}: sent.")
        except (Failure, Refused) as error:
            wrong += 1
            lines.append(f"{one_line(person)}: {error}")
    if wrong == len(people):
        raise Failure("\n".join(lines))
    return "\n".join(lines)


def _publish(
    agent: Agent, to: str, arguments: Arguments, performative: str, parent: str | None
) -> Generator[Ask | Say, Any, dict[str, Any]]:
    """Publish as the agent and return the outcome; a retry is the same publish, whatever was lost."""
    about = agent.handled.about(parent)
    if parent is not None and about.budget is None:  # a hook has shown it
        shown = yield from _look_up(agent, parent)
        if shown is not None:
            agent.read(shown)
            about = agent.handled.about(parent)
    payload = {"performative": performative, **arguments.get("payload", {}), "content": arguments["content"]}
    params = {"subject": to, "from": agent.subject, "payload": payload, "replyTo": agent.subject}
    if about.conversation_id is not None:
        payload.setdefault("conversationId", about.conversation_id)
    is_answer = performative != "request" and to in about.answers_to
    if parent is not None and about.budget is not None and not is_answer:
        ancestors = [one for one in about.budget["ancestorChain"] if one != agent.subject]
        params["budget"] = {**about.budget, "ancestorChain": ancestors}
        payload.setdefault("conversationId", parent)
    elif parent is not None:
        params["parentId"] = parent
        if about.correlation_id is not None:
            payload.setdefault("correlationId", about.correlation_id)
    question = Ask("publish", {**params, "dedupeId": os.urandom(16).hex()})
    try:
        result: dict[str, Any] = yield question
    except Unreachable as error:
        raise explain_unsent(error, question) from None
    undelivered = explain_undelivered(result, to)
    if undelivered is not None:
        raise Failure(undelivered)
    return result


def _wait_for_answer(agent: Agent, asked: str, until: float) -> Generator[Ask | Say, Any, str | None]:
    """Return the id of the first answer, or None if the time is over."""
    params = {"subject": agent.subject, "after": asked, "answerTo": asked, "limit": 1}
    while (left := until - agent.monotonic()) > 0:
        piece = max(1, int(min(left, _WAIT_SECS) * 1000))
        try:
            ids = (yield Ask("inbox.wait", {**params, "timeoutMs": piece}, secs=left))["ids"]
        except Unreachable:
            return None
        if ids:
            return str(ids[0])
    return None


def _look_up(agent: Agent, wanted: str) -> Generator[Ask | Say, Any, dict[str, Any] | None]:
    """Return a waiting message without taking it."""
    params = {"subject": agent.subject, "after": wanted[:-1], "limit": _NEIGHBOURS}
    page: list[dict[str, Any]] = (yield Ask("inbox.peek", params))["messages"]
    return next((one for one in page if one["id"] == wanted), None)


def _head(asked: str, to: str, sender: str) -> str:
    """Return what stands above an answer: who wrote it, if it is not the one who was asked."""
    other = "" if sender == to else f", from {one_line(sender)} (you asked {one_line(to)})"
    return f"Answer to your message {asked}{other}:\n"


def _is_failure(envelope: dict[str, Any]) -> bool:
    payload, sender = envelope.get("payload"), str(envelope.get("from"))
    is_bus = sender == "relay.system.bus" or sender.startswith("relay.adapter.")
    return is_bus and isinstance(payload, dict) and payload.get("performative") == "failure"

"""The tools that send: `relay_send`, `relay_ask` and `relay_notify_user`.

1. The sender is always the session's agent. handled.py determines the parent.
2. A message is published once: a retry has the same dedupe id.
3. The reply to `relay_ask` stays in the mailbox until it is written to the client, whatever happens to the call, the
   client or the supervisor before that.
4. A reply is the child of the message that it answers. A question, or a message passed on to another agent, has the
   budget of the message being handled, but is not its child: the agent is among that message's ancestors, and the bus
   would take the reply for a loop. Hops, calls and time shrink all the same.
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
"""At most this many ids differ only in the last letter, so a message is among this many after the rest of its id."""
_WAIT_SECS = 5.0
"""A wait is split into requests of this length, so that an abandoned one ends soon."""


def send(agent: Agent, arguments: Arguments) -> Steps:
    """Send a message."""
    result = yield from _publish(agent, arguments["to"], arguments, "inform", agent.parent(arguments))
    return describe_delivery(result)


def ask(agent: Agent, arguments: Arguments) -> Steps:
    """Send a message and wait for the reply."""
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
            f"No answer within {secs} s. Your message {asked} is delivered, and {one_line(to)} may still answer: the "
            "answer will be in your inbox (relay_inbox). Do not ask again."
        )
    if answer is None:
        return f"The answer {answer_id} to your message {asked} is in your inbox, or went to another session of yours."
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
    """Write to every person whom the agent can reach, even if the conversation's budget is used up."""
    people = (yield Ask("agents.people", {"subject": agent.subject}))["people"]
    if not people:
        raise Failure(
            f"Your user cannot be reached. The operator must add a binding for {agent.subject} to adapters.json "
            "(docs/adapters)."
        )
    lines = []
    failures = 0
    for person in people:
        try:
            yield from _publish(agent, person, arguments, "inform", None)
            lines.append(f"{one_line(person)}: sent.")
        except (Failure, Refused) as error:
            failures += 1
            lines.append(f"{one_line(person)}: {error}")
    if failures == len(people):
        raise Failure("\n".join(lines))
    return "\n".join(lines)


def _publish(
    agent: Agent, to: str, arguments: Arguments, performative: str, parent: str | None
) -> Generator[Ask | Say, Any, dict[str, Any]]:
    """Publish as the agent and return the result."""
    about = agent.handled.about(parent)
    if parent is not None and about.budget is None:  # only a hook has shown it
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
        ancestors = [subject for subject in about.budget["ancestorChain"] if subject != agent.subject]
        params["budget"] = {**about.budget, "ancestorChain": ancestors}
        payload.setdefault("conversationId", parent)
    elif parent is not None:
        params["parentId"] = parent
        if about.correlation_id is not None:
            payload.setdefault("correlationId", about.correlation_id)
    request = Ask("publish", {**params, "dedupeId": os.urandom(16).hex()})
    try:
        result: dict[str, Any] = yield request
    except Unreachable as error:
        raise explain_unsent(error, request) from None
    undelivered = explain_undelivered(result, to)
    if undelivered is not None:
        raise Failure(undelivered)
    return result


def _wait_for_answer(agent: Agent, asked: str, until: float) -> Generator[Ask | Say, Any, str | None]:
    """Return the id of the first reply, or None if none comes in time."""
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
    """Return a waiting message without claiming it."""
    params = {"subject": agent.subject, "after": wanted[:-1], "limit": _NEIGHBOURS}
    page: list[dict[str, Any]] = (yield Ask("inbox.peek", params))["messages"]
    return next((message for message in page if message["id"] == wanted), None)


def _head(asked: str, to: str, sender: str) -> str:
    """Return the line above a reply; it names the sender if that is not the agent that was asked."""
    other = "" if sender == to else f", from {one_line(sender)} (you asked {one_line(to)})"
    return f"Answer to your message {asked}{other}:\n"


def _is_failure(envelope: dict[str, Any]) -> bool:
    payload, sender = envelope.get("payload"), str(envelope.get("from"))
    is_bus = sender == "relay.system.bus" or sender.startswith("relay.adapter.")
    return is_bus and isinstance(payload, dict) and payload.get("performative") == "failure"

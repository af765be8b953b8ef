"""The tools that read: `relay_inbox`, `relay_ack` and `relay_list`.

1. Showing claims nothing. A claim takes only messages that are then shown; those that do not fit stay in the mailbox.
2. A message that was only shown is claimed when it is acknowledged. One that became a dead letter meanwhile, because
   the connection was lost, is completed late, and the model is told.
3. A message that cannot be acknowledged is an error for that message only.
"""

from __future__ import annotations

from relay_supervisor.agents.light import TYPE_CHECKING
from relay_supervisor.agents.light.fence import one_line, show_messages
from relay_supervisor.agents.light.refusals import Failure
from relay_supervisor.agents.light.sync_connection import Refused
from relay_supervisor.agents.light.upstream import Ask
from relay_supervisor.agents.mcp.agent import Say

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from relay_supervisor.agents.mcp.agent import Agent, Arguments, Steps

_USUAL_LIMIT = 10


def inbox(agent: Agent, arguments: Arguments) -> Steps:
    """Show the waiting messages, and claim them on request."""
    limit = arguments.get("limit", _USUAL_LIMIT)
    if agent.unseen:
        return _show_unseen(agent)
    earlier = list(agent.held)
    notes: list[str] = []
    found = (yield Ask("inbox.peek", {"subject": agent.subject, "limit": limit}))["messages"]
    text, shown = show_messages(found)
    messages, more = found[: len(shown)], len(found) > len(shown) or len(found) == limit
    if arguments.get("claim") and shown:
        request = agent.claim(shown, is_seen=False)
        messages = (yield request)["messages"]
        if request.times > 1 and len(messages) < len(shown):
            notes.append("The connection was lost: messages claimed before that are dead letters now.")
        text, shown = show_messages(messages)
        agent.held.update(dict.fromkeys(shown))
    for envelope in messages:
        agent.read(envelope)
    if earlier:
        notes.append(f"Claimed by you earlier and not acknowledged: {', '.join(earlier)}")
    count = len(shown)
    head = f"{count} message{'s' if count != 1 else ''}" + (", more are waiting:" if more else ":" if count else ".")
    return "\n\n".join(filter(None, [head, text, *notes]))


def ack(agent: Agent, arguments: Arguments) -> Steps:
    """Acknowledge messages."""
    lines = []
    failed = False
    for message_id in dict.fromkeys(arguments["ids"]):
        try:
            done = yield from _finish(agent, message_id, arguments.get("failed"))
            lines.append(f"{one_line(message_id)}: {done}")
        except Refused as error:
            failed = True
            lines.append(f"{one_line(message_id)}: {one_line(error.message)}")
    if failed:
        raise Failure("\n".join(lines))
    return "\n".join(lines)


def list_all(agent: Agent, arguments: Arguments) -> Steps:
    """List the agents, and the people whom `relay_notify_user` reaches."""
    agents: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        page = yield Ask("agents.list", params)
        agents += page["agents"]
        if page.get("cursor") is None:
            break
        params = {"cursor": page["cursor"]}
    people = (yield Ask("agents.people", {"subject": agent.subject}))["people"]
    lines = [_describe(other, agent) for other in agents]
    reached = ", ".join(one_line(person) for person in people) or "no one"
    return "\n".join([*lines, f"relay_notify_user reaches: {reached}"])


def _show_unseen(agent: Agent) -> str:
    """Show messages that were claimed for a call that had ended."""
    messages, agent.unseen = agent.unseen, []
    text, shown = show_messages(messages)
    agent.unseen = messages[len(shown) :]
    for envelope in messages[: len(shown)]:
        agent.held[envelope["id"]] = None
        agent.read(envelope)
    return f"Claimed by you in an earlier call, which ended before they arrived:\n\n{text}"


def _finish(agent: Agent, message_id: str, failed: str | None) -> Generator[Ask | Say, Any, str]:
    params = {"subject": agent.subject, "id": message_id}
    if message_id not in agent.held:  # it was only shown
        for envelope in (yield agent.claim([message_id]))["messages"]:
            agent.read(envelope)
            agent.held[message_id] = None
    if failed is None:
        request = Ask("inbox.complete", {**params, "late": True})
    else:
        request = Ask("inbox.fail", {**params, "reason": failed})
    try:
        result = yield request
    except Refused as error:
        if error.code != "not_found":
            raise
        agent.held.pop(message_id, None)
        if request.times < 2:
            message = "is not in your inbox: already acknowledged, or a dead letter now"
            raise Refused(error.code, message, error.data) from None
        result = {}  # it was done, but the answer was lost with the connection
    agent.held.pop(message_id, None)
    agent.handled.acknowledged(message_id)
    if failed is not None:
        return "a dead letter now, with your reason."
    return "done, late: it had already become a dead letter." if result.get("late") else "done."


def _describe(other: dict[str, Any], agent: Agent) -> str:
    if other.get("connected"):
        presence = "connected"
    elif other.get("lastSeen"):
        presence = f"last seen {_ago(agent.now_ms() - other['lastSeen'])} ago"
    else:
        presence = "not connected"
    you = " (you)" if other["subject"] == agent.subject else ""
    description = f": {one_line(other['description'])}" if other.get("description") else ""
    return f"{one_line(other['subject'])}{you}, {presence}, {other.get('unread', 0)} unread{description}"


def _ago(ms: int) -> str:
    secs = max(ms // 1000, 0)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if secs >= size:
            return f"{secs // size} {unit}"
    return f"{secs} s"

"""Agents: add, remove and list them, and the people they may write to."""

from __future__ import annotations

from relay_core.messages.subjects import is_pattern
from relay_core.protocol.base import ListParams, SubjectParams
from relay_core.protocol.endpoints import AddAgentParams, AgentList, NewAgent, People
from relay_supervisor.api.context import ApiContext
from relay_supervisor.api.methods.handlers import handles
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.identity import Identity


@handles("agents.add")
async def add(context: ApiContext, connection: Connection, params: AddAgentParams) -> NewAgent:
    """Add an agent, or update its description."""
    try:
        agent, token, path = await context.agents.add(params.subject, params.description, params.cwd)
    finally:
        context.drop_revoked()  # a new token replaces the previous one
    return NewAgent(agent=agent, token=token, token_file=str(path))


@handles("agents.remove")
async def remove(context: ApiContext, connection: Connection, params: SubjectParams) -> None:
    try:
        await context.agents.remove(params.subject)
    finally:
        context.drop_revoked()  # even if a later step failed


@handles("agents.list")
def list_agents(context: ApiContext, connection: Connection, params: ListParams) -> AgentList:
    """List agents and endpoints; an agent sees itself and those it may write to."""
    states, cursor = context.agents.page(params.cursor, params.limit)
    identity = connection.identity
    if not identity.operator:
        visible = (agent for agent in states if _may_see(context, identity, agent.subject))
        states = [agent if agent.cwd is None else agent.model_copy(update={"cwd": None}) for agent in visible]
    return AgentList(agents=states, cursor=cursor)


@handles("agents.people")
def people(context: ApiContext, connection: Connection, params: SubjectParams) -> People:
    context.replies.check_reader(connection, params.subject)
    return People(people=context.relay.people(params.subject))


def _may_see(context: ApiContext, identity: Identity, subject: str) -> bool:
    if identity.pattern is None or is_pattern(identity.pattern) or identity.is_mine(subject):
        return True
    return context.relay.check_access(identity.pattern, subject).allowed

"""Agents: who was added, who is there, and whom they may write to."""

from __future__ import annotations

from relay_core.protocol import (
    AddAgentParams,
    AgentList,
    Done,
    ListParams,
    NewAgent,
    People,
    SubjectParams,
)
from relay_core.subjects import is_pattern
from relay_supervisor.connection import Connection
from relay_supervisor.identity import Identity
from relay_supervisor.services import Services


async def add(services: Services, connection: Connection, params: AddAgentParams) -> NewAgent:
    """Add an agent, or say more about one."""
    try:
        agent, token, path = await services.agents.add(params.subject, params.description, params.cwd)
    finally:
        services.disown()  # a token that is made anew ends the one before it
    return NewAgent(agent=agent, token=token, token_file=str(path))


async def remove(services: Services, connection: Connection, params: SubjectParams) -> Done:
    """Take an agent away; its connections end, its mail stays."""
    try:
        await services.agents.remove(params.subject)
    finally:
        services.disown()  # also if only the rest of it could not be done
    return Done()


def list_agents(services: Services, connection: Connection, params: ListParams) -> AgentList:
    """List the agents and the other endpoints; to an agent, itself and those that it may write to."""
    states, cursor = services.agents.page(params.cursor, params.limit)
    who = connection.identity
    if not who.operator:
        seen = (one for one in states if _may_see(services, who, one.subject))
        states = [one if one.cwd is None else one.model_copy(update={"cwd": None}) for one in seen]
    return AgentList(agents=states, cursor=cursor)


def people(services: Services, connection: Connection, params: SubjectParams) -> People:
    """List the persons to whom an agent may write."""
    services.replies.check_reader(connection, params.subject)
    return People(people=services.relay.bus.bindings.people(params.subject))


def _may_see(services: Services, who: Identity, subject: str) -> bool:
    if who.pattern is None or is_pattern(who.pattern) or who.is_mine(subject):
        return True
    return services.relay.bus.access.check(who.pattern, subject).allowed

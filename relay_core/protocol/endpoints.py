"""Models of endpoints, mailboxes, reply mailboxes and agents."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from relay_core.messages.operator_views import AgentState
from relay_core.protocol.base import Params, Result, SubjectParams, check_printable
from relay_core.protocol.state import MailboxState
from relay_core.storage.endpoint_file import Endpoint

Description = Annotated[str, Field(max_length=300), AfterValidator(check_printable)]
"""What an agent can do, in one line."""


class EndpointList(Result):
    """A page of the registered endpoints by subject, without reply mailboxes."""

    endpoints: list[Endpoint]
    cursor: str | None = None
    """For the next page; missing on the last."""


class OpenReplyParams(Params):
    """A reply mailbox to open."""

    key: Annotated[str, Field(min_length=32, max_length=200)] | None = None
    """The key of a mailbox from an earlier connection, to open that one again."""


class ReplyMailbox(Result):
    """A private mailbox for answers, owned by the connection until it ends."""

    subject: str
    """For `replyTo`."""
    key: str
    """Proves ownership, also after a restart. Keep it secret."""


class MailboxList(Result):
    """Every mailbox, by subject."""

    mailboxes: list[MailboxState]


class AddAgentParams(SubjectParams):
    """An agent to add."""

    description: Description | None = None
    """What it can do; shown to other agents."""
    cwd: Annotated[str, Field(max_length=4096), AfterValidator(check_printable)] | None = None
    """Its working directory."""


class NewAgent(Result):
    """An agent and its token."""

    agent: AgentState
    token: str
    """The secret."""
    token_file: str
    """Its path, for `relay mcp` and `relay hook`."""


class AgentList(Result):
    """A page of the agents and every other endpoint, by subject."""

    agents: list[AgentState]
    """May hold fewer than the limit, or none, if a token may not see all of them; rely on the cursor."""
    cursor: str | None = None
    """For the next page; missing on the last."""


class People(Result):
    """The people an agent may write to, by subject."""

    people: list[str]

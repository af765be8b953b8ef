"""The agents of this machine: which were added, which are connected, and when each was last seen.

1. agents.json lists the agents that the operator has added, with their descriptions. Endpoints and tokens are stored
   elsewhere: an invalid file loses only descriptions, is reported, and is not overwritten.
2. An added agent has one token, for exactly its subject, in the private file ``agents/SUBJECT.token``, so that no
   project file has to hold it. If the file is missing or was readable by others, adding the agent again creates a new
   token and revokes the old one.
3. A connection that names its agent is counted until it ends; its start and end set the agent's last-seen time. That
   time is saved at most once in `SAVE_SECS` and at shutdown: a kill loses at most that much.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from relay_core.clock import Clock, Timer, call_later
from relay_core.core import RelayCore
from relay_core.errors import ConfigError, InvalidSubject, NotFound
from relay_core.messages.base import WireModel, first_problem, trusted
from relay_core.messages.operator_views import AgentState
from relay_core.messages.subjects import is_reply, validate_subject
from relay_core.paths import agent_token_name
from relay_core.protocol.endpoints import Description
from relay_core.storage.atomic_file import atomic_write, storage_error
from relay_core.storage.trusted_file import read_trusted
from relay_supervisor.server.connection import Connection
from relay_supervisor.server.tokens import Tokens, check_pattern

logger = logging.getLogger(__name__)

AGENTS_FILE = "agents.json"
SAVE_SECS = 60.0


class Agent(WireModel):
    """An entry of agents.json."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    subject: str
    description: Description | None = None
    cwd: str | None = None
    last_seen: int | None = None


_FILE = TypeAdapter(list[Agent])


class Agents:
    """The registry of agents."""

    def __init__(self, relay: RelayCore, tokens: Tokens, clock: Clock) -> None:
        self._relay = relay
        self._tokens = tokens
        self._clock = clock
        self._dir = relay.data_dir.path
        self._path = self._dir / AGENTS_FILE
        self._agents: dict[str, Agent] = {}
        self._acting: dict[Connection, str] = {}
        self._saving: Timer | None = None
        self._changing = asyncio.Lock()
        self.broken: str | None = None
        """Why agents.json is not used, or None."""

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._load)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saving is not None:
            self._saving.cancel()
            self._save()

    async def add(self, subject: str, description: str | None, cwd: str | None) -> tuple[AgentState, str, Path]:
        """Create an agent's mailbox, token and entry; return the agent, its token and the token's file.

        An existing agent keeps its messages, its token, and the parts of its entry that are not given.

        Raises:
            InvalidSubject: if an agent cannot have this subject.
            ConfigError: while agents.json or tokens.json is invalid.
            StorageError: if a file cannot be written.
        """
        validate_subject(subject)
        check_pattern(subject)
        if is_reply(subject):
            raise InvalidSubject(
                f"{subject!r} is reserved for private reply mailboxes: choose another name", subject=subject
            )
        async with self._changing:
            self._check_file()
            await self._relay.register_endpoint(subject)
            token, path = await asyncio.to_thread(self._token, subject)
            known = self._agents.get(subject, Agent(subject=subject))
            given = {"description": description, "cwd": cwd}
            update = {key: value for key, value in given.items() if value is not None}
            self._agents[subject] = known.model_copy(update=update)
            await asyncio.to_thread(self._write)
        return self.state(subject), token, path

    async def remove(self, subject: str) -> None:
        """Remove an agent's entry, token and endpoint; its messages stay.

        Raises:
            NotFound: if it was not added.
            ConfigError: while agents.json or tokens.json is invalid.
            StorageError: if a file cannot be written.
        """
        async with self._changing:
            self._check_file()
            if subject not in self._agents:
                raise NotFound(f"no agent {subject}: see 'relay agent list'", what=subject)
            await asyncio.to_thread(self._forget_token, subject)
            with suppress(NotFound):
                await self._relay.unregister_endpoint(subject)
            del self._agents[subject]
            await asyncio.to_thread(self._write)

    def connected(self, connection: Connection, subject: str) -> None:
        """Count a connection as its agent's until it ends; only the first agent that it names counts."""
        if connection in self._acting:
            return
        self._acting[connection] = subject
        self._see(subject)
        connection.on_closed(lambda: self._see(self._acting.pop(connection)))

    def acting_for(self, connection: Connection) -> str | None:
        """Return the agent that a connection acts for."""
        return self._acting.get(connection)

    def page(self, after: str | None, limit: int) -> tuple[list[AgentState], str | None]:
        """Return a page of agents and endpoints (without reply mailboxes) by subject, and the next cursor."""
        endpoints = page_of(self._relay.endpoint_subjects(), after, limit + 1)
        added = page_of(sorted(self._agents), after, limit + 1)
        names = sorted({*endpoints, *added})[: limit + 1]
        more = len(names) > limit
        names = names[:limit]
        acting = Counter(self._acting.values())
        return [self.state(subject, acting) for subject in names], names[-1] if more else None

    def state(self, subject: str, acting: Mapping[str, int] | None = None) -> AgentState:
        """Return the state of an agent."""
        if acting is None:
            acting = Counter(self._acting.values())
        known = self._agents.get(subject)
        return trusted(
            AgentState,
            {
                "subject": subject,
                "description": known.description if known else None,
                "cwd": known.cwd if known else None,
                "connected": acting.get(subject, 0),
                "last_seen": known.last_seen if known else None,
                "unread": self._relay.depth(subject),
                "added": known is not None,
            },
        )

    def _see(self, subject: str) -> None:
        known = self._agents.get(subject)
        if known is None:
            return
        self._agents[subject] = known.model_copy(update={"last_seen": self._clock.now_ms()})
        if self._saving is None:
            self._saving = call_later(self._clock, SAVE_SECS, self._save)

    def _save(self) -> None:
        self._saving = None
        try:
            if self.broken is None:
                self._write(sync=False)
        except Exception as error:
            logger.warning("cannot save when agents were last seen: %s", error)

    def _load(self) -> None:
        try:
            self._agents = {agent.subject: agent for agent in read_agents(self._path)}
        except ValueError as error:
            self.broken = str(error)
            logger.error("agents.json is not used: %s", self.broken)

    def _check_file(self) -> None:
        if self.broken is not None:
            raise ConfigError(f"repair the file, then restart the supervisor: {self.broken}", path=str(self._path))

    def _write(self, *, sync: bool = True) -> None:
        entries = [agent.to_wire() for agent in self._agents.values()]
        data = orjson.dumps(entries, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        atomic_write(self._path, data, sync=sync)

    def _token(self, subject: str) -> tuple[str, Path]:
        """Return an agent's token and its file; create the token if the file holds no valid one. Blocks."""
        path = Path(agent_token_name(str(self._dir), subject))
        try:
            token = read_trusted(path, private=True).decode().strip()
            known = self._tokens.check(token)
            if known is not None and known.pattern == subject:
                return token, path
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            logger.warning("replacing the token in %s: %s", path, error)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise storage_error("create", path.parent, error) from error
        self._tokens.revoke(subject, _note(subject))
        _, token = self._tokens.add(subject, note=_note(subject))
        atomic_write(path, f"{token}\n".encode())
        return token, path

    def _forget_token(self, subject: str) -> None:
        self._tokens.revoke(subject, _note(subject))
        path = Path(agent_token_name(str(self._dir), subject))
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error("remove", path, error) from error


def page_of(names: list[str], after: str | None, limit: int) -> list[str]:
    """Return the first names of a sorted list after a name."""
    start = bisect_right(names, after) if after is not None else 0
    return names[start : start + limit]


def read_agents(path: Path) -> list[Agent]:
    """Return the entries of agents.json; blocks.

    Raises:
        ValueError: if the file is invalid or unreadable.
    """
    try:
        return _FILE.validate_json(read_trusted(path))
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise ValueError(": ".join(filter(None, [str(path), *first_problem(error)]))) from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _note(subject: str) -> str:
    return f"agent {subject}"[:200]

"""The seam to the bus.

1. Each agent is a lane: its own mailbox, order and breaker. The bus gives it one message at a time, and takes one of
   ``maxConcurrent`` slots for it only when the agent is free, so what waits was not begun.
2. Detached: a publish returns once the message is stored. A turn that was running when the supervisor died is parked
   as ``interrupted`` by the bus at the next start: it may have done anything, and is not run twice.
3. A reload lets turns under way end (``drain`` is as long as a turn may take): the agents go on in the new instance
   meanwhile, and what a turn has done so far would be lost work. A stop of the supervisor does not wait that long.
   What both instances of an agent must know, so that its session is not in two programs, they share.
4. Stopping ends every program and all that they started, and returns when they are gone.
5. That an agent is not logged in is said in the status, but the others go on: its breaker is enough to stop it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from relay_core.adapters.interface import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult
from relay_core.messages.envelope import Envelope
from relay_core.tasks import Tasks
from relay_supervisor.adapters.claude_code.config import ClaudeCodeConfig
from relay_supervisor.adapters.claude_code.program import Program, ProgramProblem, find_program

if TYPE_CHECKING:
    from relay_supervisor.adapters.claude_code.agent import Agent, Sessions
    from relay_supervisor.adapters.claude_code.turn import Outcome

AGENT_PREFIX = "relay.agent."
_SLACK_SECS = 60.0
"""For the end of a program and for the answer, after the turn's own time."""


class ClaudeCodeAdapter:
    """Agents that are Claude Code sessions."""

    config_model: ClassVar[type[ClaudeCodeConfig]] = ClaudeCodeConfig
    detached = True

    def __init__(self, id: str, config: ClaudeCodeConfig) -> None:
        self.id = id
        self.patterns: Sequence[str] = tuple(f"{AGENT_PREFIX}{name}" for name in config.agents)
        self.max_in_flight = config.max_concurrent
        self.timeout = config.turn_timeout_secs + _SLACK_SECS
        self.drain = self.timeout
        self.status = AdapterStatus("disconnected")
        self._config = config
        self._context: AdapterContext | None = None
        self._program: Program | None = None
        self._agents: dict[str, Agent] = {}
        self._tasks = Tasks()
        self._stack = AsyncExitStack()
        self._troubles: dict[str, str] = {}
        """What keeps an agent from working that only an operator can mend."""

    def lane(self, subject: str) -> str | None:
        """Return the agent's name."""
        return subject.removeprefix(AGENT_PREFIX)

    async def start(self, context: AdapterContext) -> None:
        """Find the program; the agents' sessions open with their first message."""
        make = await asyncio.to_thread(_load_agent)
        self._program = program = await find_program(self._config.cli_path, context.data_dir)
        self._context = context
        self._tasks = Tasks()
        self._troubles.clear()
        sessions = await self._stack.enter_async_context(context.share(("claude-code", self.id), _no_sessions))
        self._agents = {
            name: make(name, self._config, program, context, self._tasks, sessions, self._note_outcome)
            for name in self._config.agents
        }
        self._set_status(AdapterStatus("connected"))

    async def stop(self) -> None:
        """End every program."""
        self.status = AdapterStatus("disconnected")
        agents, self._agents = list(self._agents.values()), {}
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.close())
        await self._tasks.close()
        await self._stack.aclose()
        self._context = None

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Have the agent take a turn."""
        agent = self._agents.get(self.lane(envelope.subject) or "")
        if agent is None:
            return DeliveryResult(ok=False, error=f"no agent {envelope.subject} is configured", code="no_agent")
        return await agent.take(envelope, context)

    async def health(self) -> bool:
        """Look whether the program can be run; it is not asked, since that would cost a process each time."""
        if self._program is None:
            return False
        await asyncio.to_thread(self._program.check)
        return True

    def _note_outcome(self, agent: str, outcome: Outcome) -> None:
        before = dict(self._troubles)
        if outcome.code == "authentication_failed" and outcome.error is not None:
            self._troubles[agent] = f"agent {agent}: {outcome.error}"
        elif outcome.error is None:
            self._troubles.pop(agent, None)
        if self._troubles != before:
            self._set_status(AdapterStatus("connected", "; ".join(self._troubles.values()) or None))

    def _set_status(self, status: AdapterStatus) -> None:
        if self._context is not None:
            self.status = status
            self._context.status_changed()


@asynccontextmanager
async def _no_sessions() -> AsyncIterator[Sessions]:
    """Make what the instances of an adapter share."""
    yield {}


def _load_agent() -> type[Agent]:
    """Import what needs the SDK; blocks for as long as that takes.

    Raises:
        ProgramProblem: if the SDK is not installed, or cannot pass on a message verbatim.
    """
    try:
        sdk = importlib.import_module("claude_agent_sdk")
    except ImportError as error:
        raise ProgramProblem(f"{error}: run pip install 'relay-bus[claude-code]'") from None
    if not hasattr(sdk.ClaudeAgentOptions, "verbatim_prompts"):  # added in 0.2.158
        raise ProgramProblem("claude-agent-sdk is too old: run pip install -U 'relay-bus[claude-code]'")
    # Its log lines may quote what the program said; whatever matters in them comes to us as an exception.
    logging.getLogger("claude_agent_sdk").setLevel(logging.CRITICAL)
    from relay_supervisor.adapters.claude_code.agent import Agent

    return Agent

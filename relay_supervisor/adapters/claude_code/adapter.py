"""The adapter.

1. Each agent is a lane with its own mailbox, order and breaker. The bus delivers one message at a time, and takes one
   of the ``maxConcurrent`` slots only when the agent is free, so a waiting message has not been started.
2. Detached: a publish returns once the message is stored. If the supervisor dies during a turn, the bus dead-letters
   the message as ``interrupted`` at the next start: it may have had any effect, and is not run twice.
3. A reload lets running turns finish (``drain`` is as long as a turn may take): the agents continue in the new
   instance meanwhile, and cancelling a turn would lose its work. A stop of the supervisor does not wait that long.
   Both instances share the agents' sessions, so that a session is never in two programs.
4. Stopping ends every program and all its processes, and returns when they have exited.
5. An agent that is not logged in is shown in the status, but the others continue: its breaker is enough to stop it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, ClassVar

from relay_core.adapters.interface import AdapterContext, DeliveryContext, DeliveryResult
from relay_core.messages.envelope import Envelope
from relay_core.tasks import Tasks
from relay_supervisor.adapters.claude_code.config import ClaudeCodeConfig
from relay_supervisor.adapters.claude_code.program import Program, ProgramProblem, find_program
from relay_supervisor.adapters.platform import PlatformAdapter

if TYPE_CHECKING:
    from relay_supervisor.adapters.claude_code.agent import Agent, Sessions
    from relay_supervisor.adapters.claude_code.turn import Outcome

AGENT_PREFIX = "relay.agent."
_SLACK_SECS = 60.0
"""For the end of the program and for the answer, after the turn's own time."""


class ClaudeCodeAdapter(PlatformAdapter):
    """Agents that are Claude Code sessions."""

    config_model: ClassVar[type[ClaudeCodeConfig]] = ClaudeCodeConfig
    detached = True

    def __init__(self, id: str, config: ClaudeCodeConfig) -> None:
        super().__init__(id)
        self.patterns: Sequence[str] = tuple(f"{AGENT_PREFIX}{name}" for name in config.agents)
        self.max_in_flight = config.max_concurrent
        self.timeout = config.turn_timeout_secs + _SLACK_SECS
        self.drain = self.timeout
        self._config = config
        self._program: Program | None = None
        self._agents: dict[str, Agent] = {}
        self._problems: dict[str, str] = {}
        """By agent, problems that only an operator can solve."""

    def lane(self, subject: str) -> str | None:
        """Return the agent's name."""
        return subject.removeprefix(AGENT_PREFIX)

    async def _open(self, context: AdapterContext, stack: AsyncExitStack) -> None:
        """Find the program; the agents' sessions open with their first message."""
        make = await asyncio.to_thread(_load_agent)
        self._program = program = await find_program(self._config.cli_path, context.data_dir)
        self._problems.clear()
        no_sessions: Sessions = {}
        sessions = await stack.enter_async_context(
            context.share(("claude-code", self.id), lambda: nullcontext(no_sessions))
        )
        tasks = Tasks()
        stack.push_async_callback(tasks.close)
        stack.push_async_callback(self._close_agents)
        self._agents = {
            name: make(name, self._config, program, context, tasks, sessions, self._note_outcome)
            for name in self._config.agents
        }
        self._set_status("connected")

    async def _close_agents(self) -> None:
        agents, self._agents = list(self._agents.values()), {}
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.close())

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Run a turn of the agent."""
        agent = self._agents.get(self.lane(envelope.subject) or "")
        if agent is None:
            return DeliveryResult(ok=False, error=f"no agent {envelope.subject} is configured", code="no_agent")
        return await agent.handle(envelope, context)

    async def health(self) -> bool:
        """Check that the program can be run, without running it: each probe would cost a process."""
        if self._program is None:
            return False
        await asyncio.to_thread(self._program.check)
        return True

    def _note_outcome(self, agent: str, outcome: Outcome) -> None:
        before = dict(self._problems)
        if outcome.code == "authentication_failed" and outcome.error is not None:
            self._problems[agent] = f"agent {agent}: {outcome.error}"
        elif outcome.error is None:
            self._problems.pop(agent, None)
        if self._problems != before:
            self._set_status("connected", "; ".join(self._problems.values()) or None)


def _load_agent() -> type[Agent]:
    """Import the modules that need the SDK; blocks.

    Raises:
        ProgramProblem: if the SDK is not installed, or too old to pass a message verbatim.
    """
    try:
        sdk = importlib.import_module("claude_agent_sdk")
    except ImportError as error:
        raise ProgramProblem(f"{error}: run pip install 'relay-bus[claude-code]'") from None
    if not hasattr(sdk.ClaudeAgentOptions, "verbatim_prompts"):  # added in 0.2.158
        raise ProgramProblem("claude-agent-sdk is too old: run pip install -U 'relay-bus[claude-code]'")
    # Its log lines may quote the program's output; errors reach us as exceptions.
    logging.getLogger("claude_agent_sdk").setLevel(logging.CRITICAL)
    from relay_supervisor.adapters.claude_code.agent import Agent

    return Agent

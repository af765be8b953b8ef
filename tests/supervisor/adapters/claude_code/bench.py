"""A bus with agents whose program is `fake_cli`, and a client that asks them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from relay_core import (
    Envelope,
    RateLimitConfig,
    RelayConfig,
    RelayCore,
    ReliabilityConfig,
    Signal,
)
from relay_core.clock import Clock
from relay_supervisor.adapters.claude_code.adapter import ClaudeCodeAdapter
from relay_supervisor.adapters.claude_code.config import ClaudeCodeConfig
from tests.kit.waiting import until

FAKE_CLI = Path(__file__).with_name("fake_cli.py")
_RUN = f"import sys; sys.path[:0] = [{str(FAKE_CLI.parent)!r}]; import fake_cli; sys.exit(fake_cli.main())"
_QUICK_CLI = f"""\
#!/bin/sh
[ "$1" = --version ] && echo '2.1.325 (Claude Code)' && exit
exec {shlex.join([sys.executable, "-IS", "-c", _RUN])} "$@"
"""
"""The fake program without its compiling at every start, and without a Python for its version."""
DESK = "relay.test.desk"
QUIET = RelayConfig(durability="os", reliability=ReliabilityConfig(rate_limit=RateLimitConfig(enabled=False)))


class Bench:
    """Where the agents' program writes down what it saw."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / "relay"
        self.work = directory / "work"
        self.work.mkdir(exist_ok=True)
        self.journal = directory / "journal"
        self.program = directory / "fake-claude"
        if not self.program.exists():
            self.program.write_text(_QUICK_CLI)
            self.program.chmod(0o755)

    def agent(self, **settings: Any) -> dict[str, Any]:
        env = {"FAKE_CLAUDE_JOURNAL": str(self.journal), **settings.pop("env", {})}
        return {"cwd": str(self.work), "env": env, **settings}

    def config(self, agents: Mapping[str, Any] | None = None, **settings: Any) -> ClaudeCodeConfig:
        agents = agents or {"a": self.agent()}
        return ClaudeCodeConfig.model_validate({"cliPath": str(self.program), "agents": dict(agents), **settings})

    def adapter(self, agents: Mapping[str, Any] | None = None, **settings: Any) -> ClaudeCodeAdapter:
        return ClaudeCodeAdapter("claude", self.config(agents, **settings))

    @asynccontextmanager
    async def run(
        self,
        agents: Mapping[str, Any] | None = None,
        *,
        clock: Clock | None = None,
        relay_config: RelayConfig = QUIET,
        **settings: Any,
    ) -> AsyncIterator[Frame]:
        async with RelayCore(self.data_dir, relay_config, clock) as relay:
            desk = Frame(relay)
            await relay.register_endpoint(DESK)
            await relay.subscribe(DESK, desk.hear)
            relay.on_signal(DESK, lambda subject, signal: desk.signals.append(signal))
            await relay.add_adapter(self.adapter(agents, **settings))
            yield desk

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what the program wrote down, of some kinds or all."""
        if not self.journal.exists():
            return []
        events = [json.loads(line) for line in self.journal.read_text().splitlines()]
        return [event for event in events if not kinds or event["event"] in kinds]

    @property
    def prompts(self) -> list[str]:
        return [event["text"] for event in self.events("prompt")]

    @property
    def starts(self) -> list[dict[str, Any]]:
        return self.events("start")

    async def until(self, *kinds: str, count: int = 1) -> dict[str, Any]:
        """Wait for an event, and return the last one of its kinds."""
        await until(lambda: len(self.events(*kinds)) >= count)
        return self.events(*kinds)[-1]


class Frame:
    """A client that asks agents, and records the answers."""

    def __init__(self, relay: RelayCore) -> None:
        self.relay = relay
        self.replies: list[Envelope] = []
        self.signals: list[Signal] = []

    async def hear(self, envelope: Envelope) -> None:
        self.replies.append(envelope)

    async def send(self, text: str, agent: str = "a", *, reply_to: str | None = DESK, **more: Any) -> str:
        """Ask, and return the message's id at once."""
        budget = more.pop("budget", None)
        result = await self.relay.publish(
            f"relay.agent.{agent}", {"content": text, **more}, sender=DESK, reply_to=reply_to, budget=budget
        )
        return result.message_id

    async def ask(self, text: str, agent: str = "a", **more: Any) -> str:
        """Ask, and return what was answered."""
        before = len(self.replies)
        await self.send(text, agent, **more)
        await until(lambda: len(self.replies) > before)
        return str(self.replies[before].payload["content"])

    @property
    def contents(self) -> list[str]:
        return [reply.payload["content"] for reply in self.replies]

    @property
    def failures(self) -> list[str]:
        return [reply.payload["content"] for reply in self.replies if reply.payload["performative"] == "failure"]

    async def letters(self) -> list[tuple[str, str]]:
        """Return the code and the reason of every dead letter."""
        return [(letter.code, letter.reason) for letter in await self.relay.dead_letters()]

    async def details(self, message_id: str) -> list[str]:
        """Return what the trace of a message says of its successes."""
        spans = await self.relay.trace(message_id)
        return [outcome["detail"] for span in spans for outcome in span.outcomes or () if outcome.get("detail")]

"""The rules that the bus counts on every adapter to keep."""

from __future__ import annotations

from relay_core.testing import check_adapter
from relay_supervisor.adapters.claude_code.adapter import ClaudeCodeAdapter
from tests.supervisor.adapters.claude_code.bench import Bench


async def test_it_keeps_the_rules_of_an_adapter(bench: Bench) -> None:
    def ordered(order: str) -> ClaudeCodeAdapter:
        return bench.adapter({"a": bench.agent(env={"FAKE_CLAUDE_ORDER": order})})

    await check_adapter(
        bench.adapter,
        subject="relay.agent.a",
        make_failing=lambda: ordered("!error"),
        make_slow=lambda: ordered("!silent"),
    )

from __future__ import annotations

from pathlib import Path

from tests.kit.supervisor import a_client, a_supervisor
from tests.tui.driver import a_dashboard

TARGET = "relay.agent.flaky"


async def test_a_breaker_is_reset_after_a_question(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        async with a_dashboard(supervisor) as tui:
            await tui.press("2")
            await tui.until("✗ forced open")
            await tui.until("maintenance")

            await tui.press("X")
            await tui.until("Close the breaker of relay.agent.flaky?")
            await tui.press("escape")
            assert (await client.breakers())[0].state == "OPEN"

            await tui.press("X")
            await tui.until("Type close and press enter")
            await tui.confirm("close")
            await tui.until("● closed")
        assert (await client.breakers())[0].state == "CLOSED"


async def test_a_breaker_is_forced_open_with_a_reason(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        async with a_dashboard(supervisor) as tui:
            await tui.press("2")
            await tui.until("● closed")
            await tui.press("F")
            await tui.until("Reason?")
            await tui.type("the disk is old")
            await tui.press("enter")
            await tui.until("✗ forced open")
        (breaker,) = await client.breakers()
        assert breaker.transitions[-1].why.endswith("the disk is old")

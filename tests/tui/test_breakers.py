from __future__ import annotations

from pathlib import Path

from tests.supervisor.inside import a_client, a_supervisor
from tests.tui.desk import a_dashboard

TARGET = "relay.agent.flaky"


async def test_a_breaker_is_reset_after_a_question(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        await client.force_breaker(TARGET, "OPEN", "maintenance")
        async with a_dashboard(supervisor) as desk:
            await desk.press("2")
            await desk.until("✗ forced open")
            await desk.until("maintenance")

            await desk.press("X")
            await desk.until("Close the breaker of relay.agent.flaky?")
            await desk.press("escape")
            assert (await client.breakers())[0].state == "OPEN"

            await desk.press("X")
            await desk.until("Type close and press enter")
            await desk.confirm("close")
            await desk.until("● closed")
        assert (await client.breakers())[0].state == "CLOSED"


async def test_a_breaker_is_forced_open_with_a_reason(tmp_path: Path) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_client(supervisor) as client:
        await client.register_endpoint(TARGET)
        await client.publish(TARGET, 1, sender="relay.agent.a")
        async with a_dashboard(supervisor) as desk:
            await desk.press("2")
            await desk.until("● closed")
            await desk.press("F")
            await desk.until("Why?")
            await desk.type("the disk is old")
            await desk.press("enter")
            await desk.until("✗ forced open")
        (breaker,) = await client.breakers()
        assert breaker.transitions[-1].why.endswith("the disk is old")

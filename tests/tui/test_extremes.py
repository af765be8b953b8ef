"""Numbers that no bus should tell: every screen is drawn all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay_core.protocol.live_state import StateUpdate
from tests.kit.supervisor import a_supervisor
from tests.tui.driver import a_dashboard

MOST = 2**63 - 1


def a_picture(number: int, share: float) -> StateUpdate:
    """Return a picture in which every number is this one."""
    run = {"startedAt": number, "endedAt": number, "outcome": "ok", "counts": {"things": number}}
    us = dict.fromkeys(("count", "p50", "p95", "p99", "max"), number)
    box: dict[str, Any] = {"kind": "endpoint", "registered": True, "oldestAt": number}
    box |= dict.fromkeys(("depth", "claimed", "failed", "consumers"), number)
    state: dict[str, Any] = {"state": "connected", "patterns": ["relay.out.>"]}
    state |= dict.fromkeys(("since", "priority", "delivered", "failed", "depth"), number)
    breaker: dict[str, Any] = {"subject": "relay.agent.x", "forced": False, "openedAt": number, "retryAt": number}
    breaker |= {"consecutiveFailures": number, "halfOpenSuccesses": number}
    throughput: dict[str, Any] = {"rate10s": share, "rate60s": share, "perSecond": [number, 0]}
    throughput |= dict.fromkeys(("publishes", "bytes"), number)
    throughput |= {name: {"new": number} for name in ("deliveries", "refusals", "deadLetters")}
    throughput |= dict.fromkeys(("queueUs", "handleUs", "totalUs", "recentUs"), us)
    return StateUpdate.model_validate(
        {
            "at": 0,
            "throughput": throughput,
            "mailboxes": {f"h{at}": box | {"subject": f"relay.agent.x{at}", "pressure": share} for at in range(60)},
            "senders": {"relay.agent.x": {"count": MOST, "limit": number, "windowSecs": number, "resetsAt": number}},
            "breakers": {
                f"b{name}": breaker | {"state": name, "transitions": [{"state": name, "atMs": number, "why": "it is"}]}
                for name in ("OPEN", "HALF_OPEN", "CLOSED")
            },
            "adapters": {
                "a": {"id": "a", "type": "x", "state": state | {"id": "a"}, "restarts": number, "retryAt": number}
            },
            "jobs": {
                "j": {"name": "j", "description": "", "schedule": "", "enabled": True, "nextRun": number, "last": run}
            },
            "events": [{"kind": "breaker", "time": number, "target": "b", "status": "OPEN"}],
        }
    )


@pytest.mark.parametrize(("number", "share"), [(0, 1e308), (MOST, -1e308), (-MOST - 1, 5e-324)])
async def test_every_screen_is_drawn_whatever_the_numbers(tmp_path: Path, number: int, share: float) -> None:
    async with a_supervisor(tmp_path) as supervisor, a_dashboard(supervisor, size=(120, 36)) as tui:
        tui.app.store.state.apply(a_picture(number, share))
        for key in "1234567RJ":
            await tui.press("escape", key, *("o" if key == "3" else ()))
            tui.app.draw()
        assert tui.app.tasks.faults == []

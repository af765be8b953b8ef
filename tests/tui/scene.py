"""One scene for pictures: a bus on which everything there is to see has happened, the same in every run.

Time is a `FakeClock`. It lies in the future, so that the scheduler, which knows only real time, begins nothing by
itself; and it moves on by a second for each thing that is done, so that ids sort as they were made.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from relay_core.client.client import RelayClient
from relay_core.testing import FakeClock
from relay_supervisor.supervisor import Supervisor
from tests.kit.adapters import DIARY_PLUGIN
from tests.kit.supervisor import a_client, a_supervisor
from tests.kit.waiting import until
from tests.tui.frames import new_place

NOW = datetime(2036, 11, 14, 9, 30, tzinfo=UTC)
CONFIG: dict[str, Any] = {
    "durability": "os",
    "reliability": {"backpressure": {"maxMailboxSize": 10}, "rateLimit": {"maxPerWindow": 12}},
    "jobs": {"metrics": {"command": [sys.executable, "-c", "print('made')"]}},
}
REPORT = {
    "version": 1,
    "date": "2036-11-13",
    "events": 48213,
    "attentionCount": 1,
    "attention": [{"level": "warn", "title": "relay.agent.tester was slow", "subject": "relay.agent.tester"}],
    "headline": [{"title": "Messages", "unit": "count", "value": 48213}],
    "plots": [],
    "tables": {
        "busiest": {
            "title": "Busiest",
            "columns": [
                {"name": "subject", "title": "subject"},
                {"name": "messages", "title": "messages", "unit": "count"},
                {"name": "p95", "title": "p95", "unit": "ms"},
            ],
            "bar": "messages",
            "rows": [
                {"subject": "relay.agent.planner", "messages": 20113, "p95": 12.5},
                {"subject": "relay.agent.builder", "messages": 17400, "p95": 48.25},
                {"subject": "relay.agent.tester", "messages": 2014, "p95": 310.0},
            ],
            "total": 3,
        }
    },
}
HOSTILE = "\x1b]0;owned\x07\x1b[2J [@click=app.quit]yes[/] \u202eexe.gpj 你好"


@asynccontextmanager
async def a_scene() -> AsyncIterator[tuple[Supervisor, FakeClock]]:
    """Run a supervisor on which all of it has happened."""
    clock = FakeClock(int(NOW.timestamp() * 1000))
    home = new_place()
    try:
        _write_files(home)
        async with a_supervisor(home, CONFIG, clock) as supervisor, a_client(supervisor) as client:
            _set_jobs(supervisor)
            await _Happenings(client, clock).happen()
            await until(lambda: _diary_is_written(client))
            yield supervisor, clock
    finally:
        shutil.rmtree(home, ignore_errors=True)
        for name in [name for name in sys.modules if name.startswith("relay_plugin")]:
            del sys.modules[name]


def _write_files(home: Path) -> None:
    (home / "plugins").mkdir(mode=0o700)
    shutil.copy(DIARY_PLUGIN, home / "plugins" / "diary.py")
    (home / "plugins" / "diary.py").chmod(0o600)
    entry = {"path": "plugins/diary.py", "config": {"diary": str(home / "diary.txt")}}
    entries = [{"id": "diary", **entry}, {"id": "spare", "enabled": False, **entry}, {"id": "broken", "type": "pigeon"}]
    bindings = [{"chat": "relay.out.*", "agent": "relay.agent.planner", "start": "both"}]
    (home / "adapters.json").write_text(json.dumps({"adapters": entries, "bindings": bindings}))
    (home / "adapters.json").chmod(0o600)
    for days, report in ((1, REPORT), (2, {"messages": 7})):
        day = (NOW - timedelta(days=days)).date()
        path = home / "reports" / f"date={day}" / "report.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(report))
        made = datetime(day.year, day.month, day.day + 1, 2, 17, tzinfo=UTC).timestamp()
        os.utime(path, (made, made))


def _set_jobs(supervisor: Supervisor) -> None:
    scheduler = supervisor.context.jobs.scheduler
    for at, job in enumerate(scheduler.get_jobs()):
        is_nightly = job.id == "metrics"
        due = NOW.replace(hour=2, minute=15) + timedelta(days=1) if is_nightly else NOW + timedelta(minutes=5 * at + 1)
        scheduler.modify_job(job.id, next_run_time=due)


async def _diary_is_written(client: RelayClient) -> bool:
    """Tell whether the one message for the adapter has been taken out."""
    return any(adapter.state is not None and adapter.state.delivered for adapter in (await client.adapters()).adapters)


class _Happenings:
    """What happens, one second after the other."""

    def __init__(self, client: RelayClient, clock: FakeClock) -> None:
        self._client = client
        self._clock = clock

    async def happen(self) -> None:
        for name in ("planner", "builder", "tester", "slow", "full", "flaky", "held"):
            await self._client.register_endpoint(f"relay.agent.{name}")
        await self._converse()
        for at in range(9):
            await self._say("relay.agent.slow", {"step": at}, "relay.agent.planner")
        for at in range(11):
            await self._say("relay.agent.full", {"step": at}, "relay.agent.tester")
        for at in range(13):
            await self._say("relay.agent.builder" if at < 8 else "relay.agent.planner", at, "relay.agent.chatty")
        for reason in ("no stock", "no stock", HOSTILE):
            await self._fail("relay.agent.flaky", {"order": 7, "note": reason}, reason)
        await self._say("relay.agent.gone", {"content": HOSTILE}, "relay.desk.ada")
        await self._say("relay.out.letter", {"content": "dear diary"}, "relay.desk.ada")
        await self._client.force_breaker("relay.agent.held", "OPEN", "it is being mended")
        self._clock.advance(1)

    async def _say(self, subject: str, payload: Any, sender: str, **more: Any) -> str:
        self._clock.advance(1)
        return (await self._client.publish(subject, payload, sender=sender, **more)).message_id

    async def _fail(self, subject: str, payload: Any, reason: str) -> None:
        await self._say(subject, payload, "relay.desk.ada")
        self._clock.advance(0.25)
        (taken,) = await self._client.claim(subject)
        await self._client.fail(subject, taken.id, reason)

    async def _converse(self) -> None:
        """Let one message lead to others: one is handled, one waits, one finds nobody."""
        first = await self._say(
            "relay.agent.planner", {"content": "build it"}, "relay.desk.ada", reply_to="relay.desk.ada"
        )
        self._clock.advance(0.4)
        (taken,) = await self._client.claim("relay.agent.planner")
        second = await self._say("relay.agent.builder", {"step": 1}, "relay.agent.planner", parent_id=first)
        await self._say("relay.agent.nowhere", {"step": 2}, "relay.agent.planner", parent_id=first)
        self._clock.advance(0.8)
        await self._client.complete("relay.agent.planner", taken.id)
        (taken,) = await self._client.claim("relay.agent.builder")
        await self._say("relay.agent.tester", {"step": 3}, "relay.agent.builder", parent_id=second)
        self._clock.advance(2.5)
        await self._client.complete("relay.agent.builder", taken.id)

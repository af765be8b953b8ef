"""From real traffic on a real supervisor to a report that says exactly what happened, through a kill midway."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relay_core.client.client import RelayClient
from relay_core.messages.operator_views import JobArguments, JobRun
from relay_core.protocol.reporting import ReportContent
from tests.kit.daemon import a_daemon
from tests.spark.machine import SMALL

A, B, FULL = "relay.agent.a", "relay.agent.b", "relay.agent.full"
TODAY = JobArguments(today=True)
CONFIG: dict[str, Any] = {
    "durability": "os",
    "reliability": {
        "rateLimit": {"perSenderOverrides": {"relay.agent.busy": 7}},
        "backpressure": {"maxMailboxSize": 3},
    },
}


async def traffic(client: RelayClient) -> None:
    """Make 12 publishes, 5 refusals (3 of the rate, 2 of a full mailbox) and 4 dead letters."""
    for number in range(10):  # 7 pass, of which 2 find the mailbox full; 3 are above the sender's limit
        await client.publish(FULL if number < 5 else A, {"n": number}, sender="relay.agent.busy")
    for number in range(3):
        await client.publish(B, {"n": number}, sender="relay.agent.calm")
    for message in await client.claim(B, limit=2):
        await client.fail(B, message.id, "no good")
    await client.claim(B)
    for _ in range(2):
        await client.publish("relay.agent.nobody", {}, sender="relay.agent.calm")


def numbers(content: ReportContent) -> dict[str, float]:
    return {number["name"]: number["value"] for number in content.report["headline"]}


async def until(ready: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(240):
        while True:
            if await ready():
                return
            await asyncio.sleep(0.05)


def spark_of(data_dir: Path) -> int:
    """Return the process of the job under way, which leads a group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"nightly" in words and os.fsencode(data_dir) in words:
                return int(entry.name)
    raise AssertionError("no job is under way")


async def run(client: RelayClient, **arguments: Any) -> JobRun:
    return await client.run_job("metrics", arguments=TODAY, **arguments)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_report_says_exactly_what_happened(tmp_path: Path) -> None:
    async with a_daemon(tmp_path, CONFIG) as daemon, daemon.client() as client:
        for subject in (A, B, FULL):
            await client.register_endpoint(subject)
        await traffic(client)
        made = await run(client)
        assert (made.outcome, made.error, made.progress) == ("ok", None, None)
        first = await client.report()
        expected = await seen_by_the_bus(client)
        assert expected == {"messages": 12, "refusals": 5, "deadLetters": 4, "standingLetters": 4}
        assert {name: numbers(first)[name] for name in expected} == expected
        reasons = {(row["code"], row["sender"]): row["refused"] for row in first.report["tables"]["refusals"]["rows"]}
        assert reasons == {("rate_limited", "relay.agent.busy"): 3, ("backpressure", "relay.agent.busy"): 2}
        assert [report.date for report in (await client.reports()).reports] == [first.date] == made.reports

        # Killed midway, a run leaves the report that was there; the next one makes it whole. The first had the settings
        # that users have; these do with the cheapest.
        daemon.write_config(CONFIG | {"jobs": {"metrics": {"conf": SMALL}}})
        assert await client.reload() == []
        await client.publish(A, {"n": "one more"}, sender="relay.agent.calm")
        await run(client, wait=False)

        async def makes_tables() -> bool:
            job = next(job for job in await client.jobs() if job.name == "metrics")
            progress = job.last.progress if job.last is not None else None
            return progress is not None and progress.stage == "tables"

        await until(makes_tables)
        os.killpg(spark_of(daemon.data_dir), signal.SIGKILL)
        ended = await killed(client)
        assert (ended.outcome, ended.error) == ("failed", "was killed by SIGKILL")
        assert await client.report() == first
        assert (await run(client)).outcome == "ok"
        second = await client.report()
        assert numbers(second)["messages"] == numbers(first)["messages"] + 1
        assert not list((daemon.data_dir / "reports").glob(".making-*"))


async def seen_by_the_bus(client: RelayClient) -> dict[str, float]:
    """Return what the bus itself has counted."""
    metrics = await client.metrics()
    return {
        "messages": metrics.publishes,
        "refusals": sum(metrics.refusals.values()),
        "deadLetters": sum(metrics.dead_letters.values()),
        "standingLetters": (await client.dead_letter_page()).total,
    }


async def killed(client: RelayClient) -> JobRun:
    ended: list[JobRun] = []

    async def has_ended() -> bool:
        job = next(job for job in await client.jobs() if job.name == "metrics")
        if job.last is not None and not job.running:
            ended.append(job.last)
        return bool(ended)

    await until(has_ended)
    return ended[0]

"""adapters.json is edited under load: nothing is lost or sent twice, and a broken edit changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from relay_core.client.client import RelayClient
from relay_core.clock import SystemClock
from tests.kit.daemon import UNLIMITED, Daemon, a_daemon
from tests.kit.processes import free_port
from tests.kit.servers.webhook import SECRET, SUBJECT, Sender, a_receiver
from tests.kit.waiting import until

MESSAGES = 150
EDITS = 8
BROKEN = ["{", '{"adapters": [{"id": "hook", "type": "webhook", "config": {"outbound": {"url": "gopher://x"}}}]}']


def document(url: str, port: int, edit: int) -> dict[str, Any]:
    outbound = {
        "url": url,
        "patterns": ["relay.out.>"],
        "secret": SECRET,
        "allowHttp": True,
        "allowHosts": ["127.0.0.0/8"],
        "headers": {"x-edit": str(edit)},
    }
    inbound = {"port": port, "subject": SUBJECT, "secret": SECRET}
    return {"adapters": [{"id": "hook", "type": "webhook", "config": {"inbound": inbound, "outbound": outbound}}]}


async def edit_again_and_again(daemon: Daemon, client: RelayClient, url: str, port: int) -> None:
    """Save good and broken edits, through a rename as editors do, and wait until each is in force or refused."""
    draft, file = daemon.data_dir / "adapters.draft", daemon.data_dir / "adapters.json"
    for edit in range(1, EDITS + 1):
        for text in (BROKEN[edit % len(BROKEN)], json.dumps(document(url, port, edit))):
            draft.write_text(text)
            draft.rename(file)
            await client.reload_adapters()


async def test_nothing_is_lost_or_doubled_while_the_file_changes(tmp_path: Path) -> None:
    port = free_port()
    async with a_receiver() as receiver, a_daemon(tmp_path, UNLIMITED, started=False) as daemon:
        (daemon.data_dir / "adapters.json").write_text(json.dumps(document(receiver.url, port, 0)))
        await daemon.start()
        async with daemon.client() as client, aiohttp.ClientSession() as session:
            await client.register_endpoint(SUBJECT)
            sender = Sender(session, port, "hook", SystemClock())
            sent: list[str] = []
            statuses: Counter[int] = Counter()

            async def publish() -> None:
                for number in range(MESSAGES):
                    result = await client.publish(f"relay.out.{number % 3}", {"n": number}, sender="relay.agent.a")
                    assert result.delivered_to == 1
                    sent.append(result.message_id)

            async def post() -> None:
                for number in range(MESSAGES):
                    status, _ = await sender.send(json.dumps({"n": number}).encode(), id=f"msg_{number}")
                    statuses[status] += 1

            async with asyncio.TaskGroup() as group:
                group.create_task(publish())
                group.create_task(post())
                group.create_task(edit_again_and_again(daemon, client, receiver.url, port))
            assert statuses == {202: MESSAGES}
            await until(lambda: len(receiver.got) >= MESSAGES)
            assert [got.headers["webhook-id"] for got in receiver.got] == sent
            arrived = [envelope.payload["n"] for envelope in await client.inbox(SUBJECT, limit=1000)]
            assert arrived == list(range(MESSAGES))
            assert len({got.headers["x-edit"] for got in receiver.got}) > 1
            (adapter,) = (await client.adapters()).adapters
            assert (adapter.problem, await client.dead_letters()) == (None, [])

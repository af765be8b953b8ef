"""The webhook adapter as a whole: the rules of the seam, reloads under load, bridges, and kills."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from relay_core.adapters.interface import AdapterContext
from relay_core.clock import SystemClock
from relay_core.core import RelayCore
from relay_core.errors import RelayError
from relay_core.messages.dead_letter import Code
from relay_core.testing import check_adapter
from relay_supervisor.adapters.webhook.adapter import WebhookAdapter
from tests.kit.adapters import SampleAdapter
from tests.kit.daemon import a_daemon
from tests.kit.processes import free_port
from tests.kit.servers.webhook import (
    OLD_SECRET,
    SECRET,
    SUBJECT,
    Sender,
    a_receiver,
    a_relay,
    a_sender,
    a_webhook,
    respond,
    sign,
    stored,
)
from tests.kit.waiting import until


async def hang(request: object) -> Any:
    await asyncio.Event().wait()


async def test_it_keeps_the_rules_of_the_seam() -> None:
    async with a_receiver() as good, a_receiver() as bad, a_receiver() as slow:
        bad.respond, slow.respond = respond(500), hang

        def make(url: str) -> WebhookAdapter:
            return a_webhook({}, {"url": url})

        await check_adapter(
            lambda: make(good.url),
            subject="relay.out.x",
            make_failing=lambda: make(bad.url),
            make_slow=lambda: make(slow.url),
        )


async def test_a_port_that_is_taken_fails_the_start_with_the_remedy(data_dir: Path) -> None:
    async with a_receiver() as receiver, a_relay(data_dir) as relay:
        port = int(receiver.url.split(":")[2].split("/")[0])
        with pytest.raises(RelayError, match=r"choose another inbound\.port"):
            await relay.add_adapter(a_webhook({"port": port, "previousSecret": OLD_SECRET}))
        assert os.listdir(data_dir / "adapters" / "hook") == [], "no change of secret is noted"


async def test_a_replacement_that_does_not_start_leaves_the_old_one_serving(data_dir: Path) -> None:
    async with a_relay(data_dir) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        broken = a_webhook({"secret": OLD_SECRET}, {"url": "https://x.example", "caFile": "/no/such/file"})
        with pytest.raises(RelayError, match="caFile"):
            await relay.replace_adapter(broken)
        async with a_sender(adapter) as sender:
            assert (await sender.send())[0] == 202


async def test_a_replacement_that_starts_and_goes_again_gives_the_requests_back(data_dir: Path) -> None:
    async with a_relay(data_dir) as relay:
        old, new = a_webhook({}), a_webhook({"secret": OLD_SECRET})
        await relay.add_adapter(old)
        context = AdapterContext(relay.bus.adapters.services, "hook", data_dir / "adapters" / "hook")
        context.entered.set()
        await new.start(context)
        async with a_sender(old) as sender:
            assert (await sender.send())[0] == 401
            assert (await sender.send(secret=OLD_SECRET))[0] == 202
            await new.stop()
            assert (await sender.send(id="b"))[0] == 202
            assert (await sender.send(id="msg_1"))[0] == 200, "what the other one took is known"
        context.close()


async def test_a_request_under_way_is_answered_before_the_adapter_stops(data_dir: Path) -> None:
    reached = asyncio.Event()

    class Telling(SampleAdapter):
        def lane(self, subject: str) -> str:
            reached.set()
            return "new"

    async with a_relay(data_dir) as relay:
        adapter = a_webhook({"subject": "relay.slow"})
        await relay.add_adapter(adapter)
        await relay.add_adapter(a_webhook({}, id="other"))  # so that the listener stays
        await relay.add_adapter(Telling(patterns=["relay.slow"]))
        async with a_sender(adapter) as sender, asyncio.TaskGroup() as group:
            async with relay.bus.lifecycle.lock:  # the publish has to make a mailbox, and cannot
                sending = group.create_task(sender.send())
                await reached.wait()
                removing = group.create_task(relay.remove_adapter("hook"))
                done, _ = await asyncio.wait([removing], timeout=0.2)
                assert not done
            assert (await sending)[0] == 202
            await removing


async def test_a_reload_while_a_body_comes_in_has_the_new_adapter_judge_it(data_dir: Path) -> None:
    body = b'{"content":"hello"}'
    async with a_relay(data_dir) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        headers = sign(body, now_ms=relay.clock.now_ms(), secret=OLD_SECRET)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", adapter.port)
        writer.write(f"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode())
        async with a_sender(adapter) as sender:
            assert (await sender.send(id="other"))[0] == 202  # by now the head is read
        await relay.replace_adapter(a_webhook({"secret": OLD_SECRET}))
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 202")
        writer.close()


async def test_reloads_under_load_refuse_lose_and_double_nothing(data_dir: Path) -> None:
    """Sixteen senders, each request on a new connection, while the adapter is replaced twelve times."""
    answers: Counter[int] = Counter()
    accepted: list[str] = []

    async def keep_sending(port: int, number: int) -> None:
        turn = 0
        while not done.is_set():
            body = b'{"content":"%d-%d"}' % (number, turn)
            headers = sign(body, id=f"msg_{number}_{turn}", now_ms=relay.clock.now_ms())
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            lines += f"Connection: close\r\nContent-Length: {len(body)}\r\n"
            head = f"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n{lines}\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            await asyncio.sleep(0)  # so that a reload may come between head and body
            writer.write(body)
            reply = await reader.read()
            writer.close()
            answers[int(reply.split(b" ")[1])] += 1
            accepted.append(f"{number}-{turn}")
            turn += 1

    done = asyncio.Event()
    async with a_relay(data_dir) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        assert adapter.port is not None
        async with asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(keep_sending(adapter.port, number))
            for turn in range(12):
                await relay.replace_adapter(a_webhook({"toleranceSecs": 200 + turn}))
                sent = len(accepted)
                await until(lambda sent=sent: len(accepted) > sent + 20)  # type: ignore[misc]
            done.set()
        assert set(answers) == {202}
        assert Counter(payload["content"] for payload in await stored(relay)) == Counter(accepted)


async def test_two_relays_that_are_bridged_both_ways_stop_a_message_by_its_hops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        sides: list[RelayCore] = []
        ways_in: list[WebhookAdapter] = []
        for name in ("here", "there"):
            relay = await stack.enter_async_context(a_relay(tmp_path / name))
            way_in = a_webhook({"subject": "relay.out.x"}, id="in")
            await relay.add_adapter(way_in)
            sides.append(relay)
            ways_in.append(way_in)
        for relay, target in zip(sides, reversed(ways_in), strict=True):
            await relay.add_adapter(a_webhook(None, {"url": f"http://127.0.0.1:{target.port}/webhooks/in"}, id="out"))

        await sides[0].publish("relay.out.x", {"content": "round and round"}, sender="relay.agent.a")
        await until(lambda: any(relay.adapters()[1].failed for relay in sides))
        assert sum(relay.adapters()[1].delivered for relay in sides) == 4
        letters = [letter for relay in sides for letter in await relay.dead_letters()]
        assert sorted(letter.code for letter in letters) == [Code.ADAPTER_FAILED, "max_hops"]
        assert "answered 422" in "".join(letter.reason for letter in letters)


async def test_one_adapter_both_ways_does_not_even_begin_to_loop(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(a_relay(tmp_path / name)) for name in ("here", "there")]
        receiver = a_webhook({"subject": "relay.out.x"}, {"url": "http://127.0.0.1:1/"}, id="bridge")
        await there.add_adapter(receiver)
        await there.register_endpoint("relay.out.x")
        url = f"http://127.0.0.1:{receiver.port}/webhooks/bridge"
        await here.add_adapter(a_webhook({"subject": "relay.out.x"}, {"url": url}, id="bridge"))
        await here.publish("relay.out.x", {"content": "once"}, sender="relay.agent.a")
        await here.idle()
        await there.idle()
        assert len(await stored(there, "relay.out.x")) == 1
        assert there.adapters()[0].failed == 0


async def test_stopping_closes_the_port(data_dir: Path) -> None:
    async with a_relay(data_dir) as relay:
        adapter = a_webhook({})
        await relay.add_adapter(adapter)
        port = adapter.port
        async with a_sender(adapter) as sender:
            assert (await sender.send())[0] == 202
            await relay.remove_adapter("hook")
        with pytest.raises(OSError, match="Connect"):
            await asyncio.open_connection("127.0.0.1", port)
        assert adapter.port is None


async def test_its_words_never_show_a_secret(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    tokens = ("t0k3n-canary", "path-canary", SECRET, base64.b64decode(SECRET.removeprefix("whsec_")).decode())
    async with a_receiver() as receiver, a_relay(data_dir) as relay:
        receiver.respond = respond(500)
        outbound = {"url": f"{receiver.url}/path-canary", "headers": {"X-Key": "t0k3n-canary"}}
        adapter = a_webhook({}, outbound)
        await relay.add_adapter(adapter)
        await relay.publish("relay.out.x", {"content": "payload-canary"}, sender="relay.agent.a")
        async with a_sender(adapter) as sender:
            await sender.send(secret=OLD_SECRET)
            await sender.send()
        await relay.idle()
        said = f"{relay.adapters()} {[letter.reason for letter in await relay.dead_letters()]} {adapter.status}"
        files = read_all(data_dir / "adapters" / "hook")
    for token in (*tokens, "payload-canary"):
        assert token not in said
        assert token not in caplog.text
    for token in tokens:
        assert token.encode() not in files


def read_all(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


def write_adapters(data_dir: Path, config: dict[str, Any]) -> None:
    path = data_dir / "adapters.json"
    path.write_text(json.dumps({"adapters": [{"id": "hook", "type": "webhook", "config": config}]}))
    path.chmod(0o600)


async def test_a_supervisor_killed_while_it_delivers_parks_the_message_and_remembers_ids(tmp_path: Path) -> None:
    async with a_receiver() as receiver:
        receiver.respond = hang
        environment = {"HOOK_SECRET": SECRET}
        async with a_daemon(tmp_path, started=False, environment=environment) as daemon, AsyncExitStack() as stack:
            port = free_port()
            loopback = {"allowHttp": True, "allowHosts": ["127.0.0.1"], "wait": False}
            config = {
                "inbound": {"port": port, "subject": SUBJECT, "secret": "env:HOOK_SECRET"},
                "outbound": {"url": receiver.url, "patterns": ["relay.out.>"], "secret": "env:HOOK_SECRET", **loopback},
            }
            write_adapters(daemon.data_dir, config)
            await daemon.start()
            session = await stack.enter_async_context(aiohttp.ClientSession())
            sender = Sender(session, port, "hook", SystemClock())
            async with daemon.client() as client:
                await client.register_endpoint(SUBJECT)
                status, first = await sender.send()
                assert status == 202
                await client.publish("relay.out.x", {"content": "x"}, sender="relay.agent.a")
                await until(lambda: len(receiver.got) == 1)
                os.kill(daemon.pid, signal.SIGKILL)
                await daemon.process.wait()
            receiver.respond = respond(200)
            await daemon.start()
            async with daemon.client() as client:
                letters = await client.dead_letters()
                assert [letter.code for letter in letters] == [Code.INTERRUPTED]
                assert await sender.send() == (200, {**first, "duplicate": True})
                assert len(await client.inbox(SUBJECT)) == 1
                await client.publish("relay.out.x", {"content": "y"}, sender="relay.agent.a")
            await until(lambda: len(receiver.got) == 2)
            assert orjson.loads(receiver.got[1].body) == {"content": "y"}, "the first one was not posted again"
            assert SECRET not in daemon.output()


async def test_a_receiver_that_is_gone_stays_so_over_a_kill_until_the_operator_reloads(tmp_path: Path) -> None:
    """With the real supervisor, whose remedy the status names."""
    async with a_receiver() as receiver, a_daemon(tmp_path, started=False) as daemon:
        receiver.respond = respond(410)
        loopback = {"allowHttp": True, "allowHosts": ["127.0.0.1"]}
        write_adapters(
            daemon.data_dir,
            {"outbound": {"url": receiver.url, "patterns": ["relay.out.>"], "secret": SECRET, **loopback}},
        )
        await daemon.start()
        async with daemon.client() as client:
            await client.publish("relay.out.x", 1, sender="relay.agent.a")
        os.kill(daemon.pid, signal.SIGKILL)
        await daemon.process.wait()
        receiver.respond = respond(200)
        await daemon.start()
        async with daemon.client() as client:
            await client.publish("relay.out.x", 2, sender="relay.agent.a")
            await client.reload_adapters()
            (hook,) = (await client.adapters()).adapters
            assert hook.state is not None
            assert (hook.state.state, len(receiver.got)) == ("disconnected", 1), "no operator has reloaded it"
            assert "run 'relay adapters reload hook'" in (hook.state.detail or "")
            await client.reload_adapters("hook")
            await until(lambda: len(receiver.got) == 2)
            (hook,) = (await client.adapters()).adapters
            assert hook.state is not None
            assert hook.state.state == "connected"

"""Ten thousand requests that are forged, expired, replayed or truncated: none is published, by whatever scheme."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from relay_core.testing import FakeClock
from relay_supervisor.adapters.webhook.signing import Scheme, read_key
from relay_supervisor.adapters.webhook.signing import sign as make_signature
from tests.kit.servers.webhook import OLD_SECRET, SECRET, a_relay, a_webhook, sign, stored

CONNECTIONS = 8
WANTED = {"forged": 401, "expired": 401, "replayed": 200, "truncated": 401, "resigned": 401, "mangled": 401}
STRANGER = "whsec_" + "c3RyYW5nZXIg" * 4
BODY = b'{"content":"genuine"}'


class Mode(NamedTuple):
    """One way to be configured, and how much is thrown at it."""

    config: dict[str, Any]
    schemes: tuple[Scheme, ...]
    requests: int

    def sign(self, body: bytes, *, id: str, now_ms: int, secret: str = SECRET) -> dict[str, str]:
        """Sign by every scheme that is taken."""
        headers = {"content-type": "application/json"}
        if "standard" in self.schemes:
            headers |= sign(body, id=id, now_ms=now_ms, secret=secret)
        if "legacy" in self.schemes:
            headers |= make_signature(id, now_ms // 1000, body, [read_key(secret)], "legacy")
        return headers

    def copies(self, now_ms: int) -> list[dict[str, str]]:
        """Return the genuine request, and what can be made of it by who has only seen it."""
        headers = self.sign(BODY, id="genuine", now_ms=now_ms)
        by_old = self.sign(BODY, id="genuine", now_ms=now_ms, secret=OLD_SECRET)
        copies = [headers]
        if "previousSecret" in self.config:  # a sender in the midst of a rotation signs with both
            copies.append(by_old)
            if "standard" in self.schemes:
                name = "webhook-signature"
                copies.insert(0, {**headers, name: f"{headers[name]} {by_old[name]}"})
        for copy in [*copies]:
            if len(self.schemes) > 1:
                for prefix in ("webhook-", "x-"):
                    copies.append({name: value for name, value in copy.items() if not name.startswith(prefix)})
        for copy in [*copies]:
            if "x-signature" in copy:
                copies.append({**copy, "x-signature": "sha256=" + copy["x-signature"].upper()})
        return copies


ROTATION = {"previousSecret": OLD_SECRET}
MODES = {
    "standard": Mode({}, ("standard",), 10_000),
    "legacy": Mode({"scheme": "legacy"}, ("legacy",), 2_000),
    "both": Mode({"scheme": "both"}, ("standard", "legacy"), 2_000),
    "rotation": Mode(ROTATION, ("standard",), 1_000),
    "legacy-rotation": Mode({"scheme": "legacy", **ROTATION}, ("legacy",), 1_000),
    "both-rotation": Mode({"scheme": "both", **ROTATION}, ("standard", "legacy"), 1_000),
}


def attacks(mode: Mode, now_ms: int) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Make requests of every kind, for ever; always the same ones."""
    random = Random(4)
    copies = mode.copies(now_ms)
    signatures = {name: value for name, value in copies[0].items() if name.endswith("-signature")}
    for number in range(10**9):
        body = b'{"content":"%d"}' % number
        good = mode.sign(body, id=f"bad_{number}", now_ms=now_ms)
        kind = random.choice([*WANTED])
        if kind == "forged":
            yield kind, mode.sign(body, id=f"bad_{number}", now_ms=now_ms, secret=STRANGER), body
        elif kind == "expired":
            away = random.choice([-1, 1]) * random.randint(301, 10**6) * 1000
            yield kind, mode.sign(body, id=f"bad_{number}", now_ms=now_ms + away), body
        elif kind == "replayed":
            yield kind, random.choice(copies), BODY
        elif kind == "truncated":
            yield kind, good, body[: random.randrange(len(body))]
        elif kind == "resigned":
            yield kind, {**good, **signatures}, body
        else:
            prefix = "webhook-" if "standard" in mode.schemes else "x-"
            name = random.choice([name for name in good if name.startswith(prefix)])
            value = good[name]
            at = random.randrange(len(value))
            yield kind, {**good, name: value[:at] + random.choice("x9/=-") + value[at:]}, body


def encode(headers: dict[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /webhooks/hook HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def send_all(port: int, requests: list[tuple[str, bytes]]) -> Counter[tuple[str, int]]:
    """Send requests over one connection, one after another, and count the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen: Counter[tuple[str, int]] = Counter()
    try:
        for kind, data in requests:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            seen[kind, int(head.split(b" ")[1])] += 1
    finally:
        writer.close()
    return seen


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
async def test_thousands_of_bad_requests_publish_nothing(data_dir: Path, clock: FakeClock, mode: Mode) -> None:
    async with a_relay(data_dir, clock) as relay:
        adapter = a_webhook(mode.config)
        await relay.add_adapter(adapter)
        assert adapter.port is not None
        taken = await send_all(adapter.port, [("genuine", encode(mode.copies(clock.now_ms())[0], BODY))])
        assert taken == {("genuine", 202): 1}

        made = await asyncio.to_thread(
            lambda: [
                (kind, encode(headers, body))
                for kind, headers, body in islice(attacks(mode, clock.now_ms()), mode.requests)
            ]
        )
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(send_all(adapter.port, made[at::CONNECTIONS])) for at in range(CONNECTIONS)]
        seen = sum((turn.result() for turn in turns), Counter())

        kinds = Counter(kind for kind, _ in made)
        assert seen == {(kind, WANTED[kind]): count for kind, count in kinds.items()}
        assert await stored(relay) == [{"content": "genuine"}]
        assert await relay.dead_letters() == []

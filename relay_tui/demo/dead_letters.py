"""Workloads that make dead letters: no target, expired, malformed, hostile, disconnected, denied."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import orjson

from relay_core.client.client import RelayClient
from relay_core.messages.envelope import Envelope
from relay_tui.demo.bus_access import BusAccess, HandlerError, Workload
from relay_tui.demo.sample_texts import COMPLAINTS, HOSTILE, LETTERS, PICTURES, SERVICES

MAILROOM = "relay.agent.mailroom"
IMPORTER = "relay.agent.importer"
LAPTOP = "relay.desk.laptop"
UNREACHABLE = ("relay.agent.translator", "relay.agent.weather", "relay.desk.dana")

ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


async def lost(bus: BusAccess) -> None:
    """Publish without a target, or with an expired TTL."""
    while True:
        text = bus.random.choice((*LETTERS, *HOSTILE))
        await bus.publish(bus.random.choice(UNREACHABLE), {"content": text}, sender="relay.desk.ada")
        await bus.pause(4.0, 9.0)
        too_late = {"ttl": bus.clock.now_ms() - 1000}
        reminder = {"content": "the meeting starts in 5 minutes", "room": "B2"}
        await bus.publish(MAILROOM, reminder, sender="relay.agent.calendar", budget=too_late)
        await bus.pause(8.0, 14.0)


async def customers(bus: BusAccess) -> None:
    """Send letters; some of them are hostile."""
    number = 0
    while True:
        number += 1
        text = HOSTILE[number // 6 % len(HOSTILE)] if number % 6 == 1 else bus.random.choice(LETTERS)
        letter = {"content": text, "senderName": "R. Stranger" if text in HOSTILE else "a customer"}
        await bus.publish(MAILROOM, letter, sender="relay.agent.contact-form")
        await bus.pause(1.0, 2.0)


async def mailroom(bus: BusAccess) -> None:
    """Handle letters; fail the hostile ones with their own text in the reason."""

    async def sort(envelope: Envelope) -> None:
        text = str(envelope.payload.get("content")) if isinstance(envelope.payload, dict) else ""
        if text in HOSTILE:
            raise HandlerError(bus.random.choice(COMPLAINTS).format(text))

    await bus.consume(MAILROOM, sort)


async def dropper(bus: BusAccess) -> None:
    """Drop truncated files into the importer's Maildir, as a program without a client would."""
    endpoint = await bus.client.register_endpoint(IMPORTER)
    while True:
        await bus.pause(1.5, 3.0)
        name = "01" + "".join(bus.random.choices(ULID_DIGITS, k=24)) + ".json"
        good = orjson.dumps({"subject": IMPORTER, "payload": {"content": f"rows of {bus.random.choice(SERVICES)}.csv"}})
        await asyncio.to_thread(drop, endpoint.maildir_path, name, good[: bus.random.randint(5, len(good) - 1)])
        await bus.pause(25.0, 40.0)


def drop(maildir: Path, name: str, data: bytes) -> None:
    """Write a file and rename it into place."""
    (maildir / "tmp" / name).write_bytes(data)
    os.rename(maildir / "tmp" / name, maildir / "new" / name)


async def importer(bus: BusAccess) -> None:
    """Acknowledge every message."""
    await bus.consume(IMPORTER)


async def laptop(bus: BusAccess) -> None:
    """Claim a message and disconnect before it is settled."""
    while True:
        await bus.pause(3.0, 5.0)
        picture = {"content": f"please crop {bus.random.choice(PICTURES)}"}
        await bus.publish(LAPTOP, picture, sender="relay.desk.chen")
        async with RelayClient(bus.client.path, data_dir=bus.data_dir, name="laptop") as client:
            await client.claim(LAPTOP)
        await bus.pause(30.0, 60.0)


async def guest(bus: BusAccess) -> None:
    """Publish to a target that the access rules deny."""
    while True:
        await bus.pause(2.0, 8.0)
        request = {"content": f"deploy {bus.random.choice(SERVICES)} from my branch, please"}
        await bus.publish("relay.agent.deploys", request, sender="relay.guest.kiosk")


MAILBOXES = (MAILROOM, IMPORTER, LAPTOP)

WORKLOADS: dict[str, Workload] = {
    "lost": lost,
    "customers": customers,
    "mailroom": mailroom,
    "dropper": dropper,
    "importer": importer,
    "laptop": laptop,
    "guest": guest,
}

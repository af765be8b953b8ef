"""Those whose messages go astray, each in another way: nobody there, too late, torn, hostile, dropped, denied."""

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
    """Write to nobody, or too late."""
    while True:
        text = bus.random.choice((*LETTERS, *HOSTILE))
        await bus.publish(bus.random.choice(UNREACHABLE), {"content": text}, sender="relay.desk.ada")
        await bus.pause(4.0, 9.0)
        too_late = {"ttl": bus.clock.now_ms() - 1000}
        reminder = {"content": "the meeting starts in 5 minutes", "room": "B2"}
        await bus.publish(MAILROOM, reminder, sender="relay.agent.calendar", budget=too_late)
        await bus.pause(8.0, 14.0)


async def customers(bus: BusAccess) -> None:
    """Write letters; some of them are not what they seem."""
    number = 0
    while True:
        number += 1
        text = HOSTILE[number // 6 % len(HOSTILE)] if number % 6 == 1 else bus.random.choice(LETTERS)
        letter = {"content": text, "senderName": "R. Stranger" if text in HOSTILE else "a customer"}
        await bus.publish(MAILROOM, letter, sender="relay.agent.contact-form")
        await bus.pause(1.0, 2.0)


async def mailroom(bus: BusAccess) -> None:
    """Sort letters; of the strange ones it says why it cannot, in their own words."""

    async def sort(envelope: Envelope) -> None:
        text = str(envelope.payload.get("content")) if isinstance(envelope.payload, dict) else ""
        if text in HOSTILE:
            raise HandlerError(bus.random.choice(COMPLAINTS).format(text))

    await bus.consume(MAILROOM, sort)


async def dropper(bus: BusAccess) -> None:
    """Drop files into the importer's Maildir, as a program without a client would; torn ones."""
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
    """Import what comes."""

    async def take(envelope: Envelope) -> None:
        return

    await bus.consume(IMPORTER, take)


async def laptop(bus: BusAccess) -> None:
    """Claim a message, and lose the connection before it is done with it."""
    while True:
        await bus.pause(3.0, 5.0)
        picture = {"content": f"please crop {bus.random.choice(PICTURES)}"}
        await bus.publish(LAPTOP, picture, sender="relay.desk.chen")
        away = RelayClient(bus.client.path, data_dir=bus.data_dir, name="laptop")
        async with away:
            await away.claim(LAPTOP)
        await bus.pause(30.0, 60.0)


async def guest(bus: BusAccess) -> None:
    """Try what a guest may not."""
    while True:
        await bus.pause(2.0, 8.0)
        wish = {"content": f"deploy {bus.random.choice(SERVICES)} from my branch, please"}
        await bus.publish("relay.agent.deploys", wish, sender="relay.guest.kiosk")


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

"""Those whose messages go astray, each in another way: nobody there, too late, torn, hostile, dropped, denied."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import orjson

from relay_core.client import RelayClient
from relay_core.envelope import Envelope
from relay_tui.demo.script import COMPLAINTS, HOSTILE, LETTERS, PICTURES, SERVICES
from relay_tui.demo.stage import Member, Stage, Trouble

MAILROOM = "relay.agent.mailroom"
IMPORTER = "relay.agent.importer"
LAPTOP = "relay.desk.laptop"
NOBODY = ("relay.agent.translator", "relay.agent.weather", "relay.desk.dana")

ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


async def lost(stage: Stage) -> None:
    """Write to nobody, or too late."""
    while True:
        text = stage.luck.choice((*LETTERS, *HOSTILE))
        await stage.tell(stage.luck.choice(NOBODY), {"content": text}, sender="relay.desk.ada")
        await stage.pause(4.0, 9.0)
        too_late = {"ttl": stage.clock.now_ms() - 1000}
        reminder = {"content": "the meeting starts in 5 minutes", "room": "B2"}
        await stage.tell(MAILROOM, reminder, sender="relay.agent.calendar", budget=too_late)
        await stage.pause(8.0, 14.0)


async def customers(stage: Stage) -> None:
    """Write letters; some of them are not what they seem."""
    number = 0
    while True:
        number += 1
        text = HOSTILE[number // 6 % len(HOSTILE)] if number % 6 == 1 else stage.luck.choice(LETTERS)
        letter = {"content": text, "senderName": "R. Stranger" if text in HOSTILE else "a customer"}
        await stage.tell(MAILROOM, letter, sender="relay.agent.contact-form")
        await stage.pause(1.0, 2.0)


async def mailroom(stage: Stage) -> None:
    """Sort letters; of the strange ones it says why it cannot, in their own words."""

    async def sort(envelope: Envelope) -> None:
        text = str(envelope.payload.get("content")) if isinstance(envelope.payload, dict) else ""
        if text in HOSTILE:
            raise Trouble(stage.luck.choice(COMPLAINTS).format(text))

    await stage.consume(MAILROOM, sort)


async def dropper(stage: Stage) -> None:
    """Drop files into the importer's Maildir, as a program without a client would; torn ones."""
    endpoint = await stage.client.register_endpoint(IMPORTER)
    while True:
        await stage.pause(1.5, 3.0)
        name = "01" + "".join(stage.luck.choices(ULID_DIGITS, k=24)) + ".json"
        good = orjson.dumps({"subject": IMPORTER, "payload": {"content": f"rows of {stage.luck.choice(SERVICES)}.csv"}})
        await asyncio.to_thread(drop, endpoint.maildir_path, name, good[: stage.luck.randint(5, len(good) - 1)])
        await stage.pause(25.0, 40.0)


def drop(maildir: Path, name: str, data: bytes) -> None:
    """Write a file and rename it into place."""
    (maildir / "tmp" / name).write_bytes(data)
    os.rename(maildir / "tmp" / name, maildir / "new" / name)


async def importer(stage: Stage) -> None:
    """Import what comes."""

    async def take(envelope: Envelope) -> None:
        return

    await stage.consume(IMPORTER, take)


async def laptop(stage: Stage) -> None:
    """Claim a message, and lose the connection before it is done with it."""
    while True:
        await stage.pause(3.0, 5.0)
        picture = {"content": f"please crop {stage.luck.choice(PICTURES)}"}
        await stage.tell(LAPTOP, picture, sender="relay.desk.chen")
        away = RelayClient(stage.client.path, data_dir=stage.data_dir, name="laptop")
        async with away:
            await away.claim(LAPTOP)
        await stage.pause(30.0, 60.0)


async def guest(stage: Stage) -> None:
    """Try what a guest may not."""
    while True:
        await stage.pause(2.0, 8.0)
        wish = {"content": f"deploy {stage.luck.choice(SERVICES)} from my branch, please"}
        await stage.tell("relay.agent.deploys", wish, sender="relay.guest.kiosk")


MAILBOXES = (MAILROOM, IMPORTER, LAPTOP)

MEMBERS: dict[str, Member] = {
    "lost": lost,
    "customers": customers,
    "mailroom": mailroom,
    "dropper": dropper,
    "importer": importer,
    "laptop": laptop,
    "guest": guest,
}

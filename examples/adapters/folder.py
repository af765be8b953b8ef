"""A complete adapter in one file: messages to ``relay.folder.ID`` become files, and files you drop are published.

adapters.json: {"adapters": [{"id": "desk", "path": "/path/to/examples/adapters/folder.py",
                              "config": {"folder": "/home/me/desk", "to": "relay.agent.helper"}}]}
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope
from relay_core.tasks import Tasks


class Config(BaseModel):
    folder: Path
    to: str
    look_every_secs: float = 1.0


class FolderAdapter:
    config_model = Config

    def __init__(self, id: str, config: Config) -> None:
        self.id, self.config, self.tasks = id, config, Tasks()
        self.patterns = self.senders = (f"relay.folder.{id}",)
        self.status = AdapterStatus("disconnected")

    async def start(self, context: AdapterContext) -> None:
        self.tasks = Tasks()
        self.tasks.start(self.look(context), name=f"folder-{self.id}")
        self.status = AdapterStatus("connected")

    async def stop(self) -> None:
        self.status = AdapterStatus("disconnected")
        await self.tasks.close()

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        path = self.config.folder / f"{envelope.id}.out"
        path.write_text(f"{envelope.sender} writes:\n\n{envelope.payload['content']}\n")
        return DeliveryResult(ok=True, detail=path.name)

    async def look(self, context: AdapterContext) -> None:
        me = self.patterns[0]
        while True:
            for path in sorted(self.config.folder.glob("*.txt")):
                with suppress(OSError):  # deleted meanwhile, or not readable
                    same = f"{path.name}-{path.stat().st_mtime_ns}"  # published once, even after a crash before unlink
                    await context.publish(self.config.to, {"content": path.read_text()}, sender=me, dedupe_id=same)
                    path.unlink()
            await asyncio.sleep(self.config.look_every_secs)


adapter = FolderAdapter

"""An adapter in one file, as an operator would write it: a message to ``relay.note.ID`` becomes a line in a text file.

The demo copies it into its data directory, where the supervisor loads it by path. The text file is truncated when it
gets long.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope

LONGEST = 64 * 1024


class Config(BaseModel):
    """Its settings in adapters.json."""

    file: Path


class Journal:
    """Appends messages to a file."""

    config_model = Config

    def __init__(self, id: str, config: Config) -> None:
        self.id = id
        self.patterns = (f"relay.note.{id}",)
        self.status = AdapterStatus("disconnected")
        self._file = config.file

    async def start(self, context: AdapterContext) -> None:
        """Create the file."""
        self._file.touch()
        self.status = AdapterStatus("connected", f"writes to {self._file.name}")

    async def stop(self) -> None:
        """Disconnect."""
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Append a line."""
        text = envelope.payload["content"] if isinstance(envelope.payload, dict) else envelope.payload
        with self._file.open("w" if self._file.stat().st_size > LONGEST else "a") as file:
            file.write(f"{envelope.created_at} {envelope.sender} {text!r}\n")
        return DeliveryResult(ok=True, detail="one line")


adapter = Journal

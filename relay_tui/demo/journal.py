"""An adapter in one file, as an operator would write it: what is sent to ``relay.note.ID`` is a line in a text file.

The demo copies it into its data directory and names it there by its path; the supervisor runs it. The file is begun
anew when it has grown long.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope

LONGEST = 64 * 1024


class Config(BaseModel):
    """What adapters.json says of it."""

    file: Path


class Journal:
    """Write messages down."""

    config_model = Config

    def __init__(self, id: str, config: Config) -> None:
        self.id = id
        self.patterns = (f"relay.note.{id}",)
        self.status = AdapterStatus("disconnected")
        self._file = config.file

    async def start(self, context: AdapterContext) -> None:
        """Be ready to write."""
        self._file.touch()
        self.status = AdapterStatus("connected", f"writes to {self._file.name}")

    async def stop(self) -> None:
        """Write no more."""
        self.status = AdapterStatus("disconnected")

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        """Write one line."""
        text = envelope.payload["content"] if isinstance(envelope.payload, dict) else envelope.payload
        with self._file.open("w" if self._file.stat().st_size > LONGEST else "a") as file:
            file.write(f"{envelope.created_at} {envelope.sender} {text!r}\n")
        return DeliveryResult(ok=True, detail="one line")


adapter = Journal

"""An adapter for tests of the adapter host: it writes a diary to a file, and other files beside it control it.

While ``{id}.unstartable`` exists it does not start (the file's text may name another way to fail), while
``{id}.hanging`` exists its start hangs, and while ``{id}.sick`` exists its health probe fails; a start removes
that file. If there is a pipe ``{id}.gate``, its stop waits until the test has written to it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from relay_core import AdapterContext, AdapterStatus, DeliveryContext, DeliveryResult, Envelope

VERSION = "v1"


class DiaryConfig(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    diary: Path
    password: str = Field(default="", max_length=40)
    note: str = "-"
    pages: int = 1

    @field_validator("password")
    @classmethod
    def _be_strong(cls, password: str) -> str:
        if password.startswith("weak"):
            raise ValueError(f"{password} is too weak")
        return password


class DiaryAdapter:
    """An adapter that works unless a file says otherwise."""

    config_model = DiaryConfig
    patterns = ("relay.out.>",)

    def __init__(self, id: str, config: DiaryConfig) -> None:
        if config.note == "unmakeable":
            raise ValueError(f"{config.password} opens nothing")
        if config.note == "exits":
            sys.exit(f"{config.password} opens nothing")
        self.id = id
        self.status = AdapterStatus("disconnected")
        self._config = config

    def _file(self, suffix: str) -> Path:
        return self._config.diary.with_name(f"{self.id}.{suffix}")

    def _write(self, entry: str) -> None:
        with self._config.diary.open("a") as diary:
            diary.write(f"{self.id} {entry} {self._config.note} {VERSION}\n")

    async def start(self, context: AdapterContext) -> None:
        self._write("start")
        if self._file("unstartable").exists():
            match self._file("unstartable").read_text():
                case "exits":
                    sys.exit("no")
                case "cancels":
                    raise asyncio.CancelledError
            raise PermissionError(f"{self._config.password} was refused")
        if self._file("hanging").exists():
            await asyncio.Event().wait()
        if self._file("held").exists():
            await asyncio.to_thread(self._file("held").read_bytes)
        self._file("sick").unlink(missing_ok=True)
        self.status = AdapterStatus("connected")

    async def stop(self) -> None:
        self._write("stop")
        if self._file("gate").exists():
            await asyncio.to_thread(self._file("gate").read_bytes)
        self.status = AdapterStatus("disconnected")

    async def health(self) -> bool:
        if self._file("sick").exists():
            raise ConnectionError(f"{self._config.password} has expired")
        return True

    async def deliver(self, envelope: Envelope, context: DeliveryContext) -> DeliveryResult:
        self._write(f"deliver {envelope.payload}")
        return DeliveryResult(ok=True)


adapter = DiaryAdapter

"""stub"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relay_core.dispatch import Consumer
from relay_core.mailbox import Mailbox
from relay_core.publication import Target


class Adapters:
    """All adapters."""

    def __init__(self, bus: Any) -> None:
        self._bus = bus

    def targets(self, subject: str, origin: str | None) -> list[Target]:
        return []

    def consumers(self, mailbox: Mailbox) -> tuple[Sequence[Consumer], float]:
        return (), 0.0

    async def close(self) -> None:
        return

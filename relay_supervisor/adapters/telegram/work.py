"""What agents do for chats right now: seen by an adapter and the one that replaces it alike.

1. A chat has one work, whichever of the two shows it.
2. While a chat's lock is held, nobody else sends anything of an answer or of a work to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Work:
    """What is done for one chat."""

    until: float
    asks: set[str] = field(default_factory=set)
    """Messages of the bus that are worked on."""
    text: str | None = None
    """The progress that is to be shown."""
    shown: str | None = None
    muted: bool = False
    """Whether there is no more progress to be shown: a second message might appear."""
    typed_at: float | None = None
    edited_at: float | None = None
    over: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_news(self) -> bool:
        """Tell whether there is progress that does not show yet."""
        return not self.muted and self.text is not None and self.text != self.shown


@dataclass(slots=True)
class Board:
    """The works of all chats."""

    works: dict[int, Work] = field(default_factory=dict)
    locks: defaultdict[int, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

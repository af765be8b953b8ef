"""What several users have in common for as long as one of them needs it.

1. It is made for the first user and closed after the last. Whoever comes while it is made or closed waits.
2. A making that fails is the failure of that user alone: the next one tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Common:
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    value: Any = None
    users: int = 0
    """Those who have it or wait for it."""
    made: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Shared:
    """Things in common, by key."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Common] = {}

    @asynccontextmanager
    async def use(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Use what lies under a key; `make` makes it if nobody has it yet."""
        common = self._known.setdefault(key, _Common())
        common.users += 1
        try:
            async with common.lock:
                if not common.made:
                    common.value = await common.stack.enter_async_context(make())
                    common.made = True
            yield common.value
        finally:
            common.users -= 1
            try:
                if common.users == 0:
                    async with common.lock:
                        if common.users == 0 and common.made:  # nobody came while it waited
                            common.made = False
                            await common.stack.aclose()
            finally:
                if common.users == 0 and not common.made and self._known.get(key) is common:
                    del self._known[key]

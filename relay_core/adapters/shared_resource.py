"""Resources that several users share.

1. A resource is created for its first user and closed after its last. A user that arrives during either waits.
2. If creating it fails, only that user fails: the next one tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Resource:
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    value: Any = None
    users: int = 0
    """Users that have it or wait for it."""
    is_open: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Shared:
    """Shared resources, by key."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, _Resource] = {}

    @asynccontextmanager
    async def use(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Use the resource of a key; `make` creates it for the first user."""
        resource = self._resources.setdefault(key, _Resource())
        resource.users += 1
        try:
            async with resource.lock:
                if not resource.is_open:
                    resource.value = await resource.stack.enter_async_context(make())
                    resource.is_open = True
            yield resource.value
        finally:
            resource.users -= 1
            try:
                if resource.users == 0:
                    async with resource.lock:
                        if resource.users == 0 and resource.is_open:  # no user came while it waited
                            resource.is_open = False
                            await resource.stack.aclose()
            finally:
                if resource.users == 0 and not resource.is_open and self._resources.get(key) is resource:
                    del self._resources[key]

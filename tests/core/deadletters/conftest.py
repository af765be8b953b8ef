"""A bus with either durability, for the tests of replay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from relay_core import RelayCore
from relay_core.testing import FakeClock
from tests.core.deadletters.replays import config
from tests.kit.bus import A, a_bus


@pytest.fixture(params=["os", "fsync"])
async def either(data_dir: Path, clock: FakeClock, request: pytest.FixtureRequest) -> AsyncIterator[RelayCore]:
    """Open a bus with either durability and one endpoint."""
    async with a_bus(data_dir, clock, config(request.param), endpoints=[A]) as relay:
        yield relay

"""A process with a bus and an agent, for a test to kill: ``python -m ...child DIRECTORY MESSAGE``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.supervisor.adapters.claude_code.bench import Bench


async def main(directory: Path, message: str) -> None:
    """Ask, and wait to be killed."""
    async with Bench(directory).run() as desk:
        await desk.send(message, correlationId="c-1")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

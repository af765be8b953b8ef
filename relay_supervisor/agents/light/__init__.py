"""Modules that `relay mcp` and `relay hook` share.

Each agent session starts the first and each prompt the second, so both import only light modules of the standard
library: no asyncio, pydantic, orjson or typer. An import contract and a test enforce this. `sync_connection` is the
connection to the supervisor.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""True for type checkers, which go by the name: importing `typing` would take a third of the start-up time."""

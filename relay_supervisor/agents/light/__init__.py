"""The parts that `relay mcp` and `relay hook` share.

Every session of an agent starts the first and every prompt the second, so both import only the fast parts of the
standard library: no asyncio, pydantic, orjson or typer (an import contract and a test check this).
"""

from __future__ import annotations

TYPE_CHECKING = False
"""True for type checkers, which go by the name: importing `typing` would take a third of the start-up time."""

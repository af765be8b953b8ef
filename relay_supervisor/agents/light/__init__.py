"""The light side: what the sessions of agents start themselves, `relay mcp` and `relay hook`.

Every session of an agent starts the one and every prompt the other, so they import the standard library alone, and of
it only what is light: no asyncio, no pydantic, no orjson, no typer (an import contract and a test hold this).
`sync_connection` is the connection to the supervisor.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""True to type checkers, which go by the name: `typing` alone takes a third of the time that there is."""

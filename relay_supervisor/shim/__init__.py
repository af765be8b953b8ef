"""The light side: what the sessions of agents start themselves, `relay mcp` and `relay hook`.

Every session of an agent starts the one and every prompt the other, so they import the standard library alone, and of
it only what is light: no asyncio, no pydantic, no orjson, no typer (an import contract and a test hold this). Start at
`mcp.py`; `line.py` is the connection to the supervisor.
"""

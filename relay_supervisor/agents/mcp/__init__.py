"""`relay mcp`: the bus as an MCP server with six tools.

`protocol` is MCP without I/O, `session` connects it to stdin, stdout and the supervisor, `tools` describes the tools,
`sending` and `reading` implement them. Every agent session starts this program: it imports `light` and a few standard
modules only.
"""

"""`relay mcp`: the bus for an agent that speaks MCP.

Every session starts one, so it imports the standard library only, and only light parts of it.
"""

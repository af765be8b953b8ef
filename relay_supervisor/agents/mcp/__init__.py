"""`relay mcp`, the MCP server that each session of an agent starts."""

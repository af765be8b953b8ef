"""Commands that set up or start another program: agents, their MCP server and hooks, and the demo.

The only commands that may import `relay_supervisor.agents`.
"""

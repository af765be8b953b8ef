"""Text for people: sanitised untrusted text, terminal columns, numbers and durations.

The command line, the dashboard, the MCP server and the nightly report share this package. It imports only the standard
library; `invisible` imports nothing, because every prompt of an agent starts a process that loads it.
"""

"""Agents on this machine.

The registry of those that were added, the edits to their configuration files (`client_config`), and the two programs
that their sessions start, `mcp` and `hooks`, which share `light`.
"""

"""Agents on this machine: the registry, their configuration files (`client_config`), and the programs they start.

The registry of added agents, the edits to their configuration files (`client_config`), and the two programs that their
sessions start, `mcp` and `hooks`, which share `light`. May import `server` and `relay_core`; the two programs may
import little (see `light`).
"""

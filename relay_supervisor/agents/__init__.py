"""Agents on this machine: the registry, their configuration files (`client_config`), and the programs they start.

These programs are `mcp` and `hooks`, which share `light`.
"""

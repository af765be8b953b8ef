"""Servers for tests: what the adapters connect to, and a proxy in front of the supervisor's socket."""

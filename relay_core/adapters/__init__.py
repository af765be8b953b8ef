"""Bridges to other platforms.

The `Adapter` protocol (`interface`), the registry of running adapters, the host and the lanes of each, and secrets in
their configuration. Adapters of particular platforms are in `relay_supervisor.adapters`. May import `pipeline` and
below.
"""

"""How the daemon is observed: logs without secrets, Prometheus metrics and OpenTelemetry spans.

Imports only `relay_core`.
"""

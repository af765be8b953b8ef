"""How the daemon is observed: logs without secrets, Prometheus metrics and OpenTelemetry spans.

May import `http` and `relay_core`.
"""

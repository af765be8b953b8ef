"""The Unix socket: connections, their identity (tokens), flow control and framing.

It knows no method: requests go to `api`. Imports only `relay_core`.
"""

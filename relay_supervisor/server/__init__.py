"""The Unix socket: connections, their identity (tokens), flow control and framing.

The methods themselves are in `api`.
"""

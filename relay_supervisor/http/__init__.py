"""HTTP with aiohttp, for adapters and metrics: a client and a server with limits.

Imports nothing else of Relay.
"""

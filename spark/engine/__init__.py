"""The Spark session: local, on a cluster or over Connect; its Java; and the class archive that speeds up its start.

Imports nothing else of Relay.
"""

"""Scheduled jobs: maintenance on the event loop, and the nightly Spark report in a subprocess.

Imports only `relay_core`.
"""

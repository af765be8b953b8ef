"""Scheduled jobs: APScheduler says when, a subprocess runs the nightly report, and its results are files.

Imports only `relay_core`.
"""

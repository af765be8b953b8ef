"""Scheduled jobs: APScheduler decides when, `subprocess` runs the nightly report, `report_files` reads its results.

Imports only `relay_core`.
"""

"""From the event log to DataFrames.

Sealed segments are ingested once each, and a day's events are read from the result. May import `storage`, and of the
bus only the event schema.
"""

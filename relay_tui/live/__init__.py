"""The live state: one connection to the supervisor, the recent history, and the alerts that follow from both.

Imports only `relay_core`; no Textual, since ``--once`` uses it too.
"""

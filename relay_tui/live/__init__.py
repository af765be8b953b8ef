"""The live picture: one connection to the supervisor, the recent past, and the alerts that follow from both.

Nothing here needs Textual.
"""

"""Records of the traffic.

The SQLite index and its queries, the event log that Spark reads, and metrics. All of it is derived and written off the
publish path; losing it loses no message. May import `journal` and below.
"""

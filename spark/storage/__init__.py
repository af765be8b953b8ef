"""Where a run reads and writes: a local directory or a URI, and small tables that are replaced a day at a time.

Of the other packages it imports only `events.schema`.
"""

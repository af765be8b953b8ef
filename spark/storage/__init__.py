"""Where a run reads and writes: a local directory or a URI, and small tables that are replaced a day at a time."""

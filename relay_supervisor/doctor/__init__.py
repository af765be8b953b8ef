"""`relay-supervisor doctor`: finds problems of the data directory and the machine, and says how to repair them.

`checks` is the list of checks, `data` and `machine` implement them, `survey` is the walk over the files. Must work
without a running supervisor. May import `adapters` and below, to check files as they would be loaded.
"""

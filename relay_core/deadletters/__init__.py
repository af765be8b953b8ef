"""After a failure: the store of dead letters, and replays, which are planned and then run.

May import `pipeline` and below.
"""

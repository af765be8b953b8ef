"""The rules that decide whether a message may pass.

Access rules, bindings, budgets, rate limits, backpressure, circuit breakers, deduplication and reply mailboxes. A rule
decides from values in memory and performs no I/O; rules that are files are read in `storage`. May import `messages` and
below.
"""

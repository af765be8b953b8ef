"""The write-ahead journal.

Segments and their format, transactions, commits with the configured durability, checkpoints, and recovery after a kill
or a power loss. May import `storage` and below.
"""

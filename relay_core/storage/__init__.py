"""Files that survive a crash.

The data directory, the Maildirs and the mailboxes over them, atomic and trusted files, the operator's files, and
watchers for files that other processes write. May import `rules` and below.
"""

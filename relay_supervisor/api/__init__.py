"""The protocol's methods as the supervisor implements them, and their shared parts.

Messages in flight at push consumers (`consumers`) and pull consumers (`claims`), reply mailboxes, and the state stream.
May import `adapters`, `jobs`, `agents`, `server` and `relay_core`.
"""

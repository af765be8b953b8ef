"""`RelayClient`: the bus's verbs over the socket.

`connection` is one connection, `reconnect` replaces a lost one, and `streams` are the iterators that callers use. The
verbs are in `client`, `dead_letters` and `operating`. May import `protocol` and below, but nothing that runs a bus.
"""

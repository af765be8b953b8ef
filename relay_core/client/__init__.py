"""`RelayClient`: the bus's verbs over the socket.

`connection` is one connection, `reconnect` replaces a lost one, `streams` are iterated over by callers. The verbs are
in `client`, `dead_letters` and `operating`. May import `protocol` and below, but not the running bus.
"""

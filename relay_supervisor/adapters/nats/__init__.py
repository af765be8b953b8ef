"""The NATS bridge: relays joined through a JetStream stream. Relay's subjects are NATS subjects.

- `config`: what adapters.json may say about it.
- `adapter`: the adapter itself: it keeps one link after another, says how it is doing, and exports.
- `link`: one connection to a server, from the handshake to its end, and publishing.
- `client`: the library's client under it, made to fail where it can be seen.
- `login`: how a link proves who it is, and how it knows the server.
- `stream`: the stream and this relay's consumer, found or made.
- `imports`: the durable consumer's messages, stored in the local bus before they are acknowledged.
- `put_off`: those of them that the bus could not take for now, counted.
- `position`: how far they have come, on disk.
- `crossing`: what a message looks like on the other side, both ways; pure.
- `refused`: the copies of messages that could not be let in.
- `identity`: the name by which this relay is known on the streams.
- `faults`: what can go wrong, as values that need no NATS library.

Only `link`, `client`, `login`, `stream` and `imports` import nats-py, and they are imported when the adapter starts: it
is an extra.
"""

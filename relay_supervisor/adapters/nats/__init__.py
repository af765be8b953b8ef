"""The NATS bridge: relays joined through a JetStream stream. Relay's subjects are NATS subjects.

- `config`: the entry in adapters.json.
- `adapter`: keeps a connection, reports its state, and exports messages.
- `connection`: one connection to a server, from the handshake to its end, and publishing.
- `client`: nats-py's client, changed to report its failures.
- `login`: credentials and TLS.
- `stream`: finds or creates the stream and this relay's consumer.
- `imports`: stores the consumer's messages in the local bus before it acknowledges them.
- `put_off`: counts messages that the bus could not accept yet.
- `position`: the position in the stream, on disk.
- `crossing`: converts messages in both directions; pure.
- `refused`: copies of messages that were refused.
- `identity`: the name of this relay on the streams.
- `faults`: failures, as values that need no NATS library.

Only `connection`, `client`, `login`, `stream` and `imports` import nats-py. It is an extra, so `adapter` imports them
when it starts.
"""

"""The NATS bridge: connects relays through a JetStream stream. Relay's subjects are NATS subjects.

- `config`: its part of adapters.json.
- `adapter`: keeps a connection, reports its status, and exports.
- `connection`: one connection to a server, from the handshake to its end, and publishing.
- `client`: nats-py's client, changed to report failures that it would hide.
- `login`: credentials and TLS.
- `stream`: finds or creates the stream and this relay's consumer.
- `imports`: stores the consumer's messages in the local bus before they are acknowledged.
- `put_off`: counts those that the bus could not accept for now.
- `crossing`: converts messages between Relay and NATS; pure.
- `files`: the files that a bridge keeps: the relay's id, the position in the stream, copies of refused messages.
- `faults`: the errors of a server, without nats-py.

Only `connection`, `client`, `login`, `stream` and `imports` import nats-py. It is an extra, so they are imported when
the adapter starts.
"""

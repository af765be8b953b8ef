"""The webhook adapter: signed HTTP messages in and out.

- `signing`: signatures by Standard Webhooks and by the older scheme; pure.
- `config`: its part of adapters.json.
- `rotation`: the current secret and, for 24 hours after a change, the previous one.
- `replays`: the ids of accepted messages, on disk.
- `inbound`: verifies, publishes and answers a request. `listener`: the HTTP server in front of it, which all webhooks
  of a port share.
- `addresses`: the hosts and addresses that may be reached. `outbound`: signs and posts a message, and interprets the
  response. `gone`: remembers that a receiver wants no more messages.
- `adapter`: starts and stops these parts.
"""

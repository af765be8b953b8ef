"""The webhook adapter: signed HTTP messages in and out.

A tour, from the rules outwards to the network:

- `signing`: what a signature is, by Standard Webhooks and by the older form. Pure.
- `config`: what adapters.json may say.
- `rotation`: the current secret and, for 24 hours after a change, the previous one.
- `replays`: the ids that were taken, on disk.
- `inbound`: one request: verify, publish, answer. `listener`: the HTTP server in front of it, shared by all webhooks
  on a port.
- `addresses`: which host may be reached, at which address. `outbound`: one message: sign, post, judge the answer.
  `gone`: that the receiver wants no more.
- `adapter`: all of it started and stopped as the bus asks.
"""

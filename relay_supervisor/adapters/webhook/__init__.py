"""The webhook adapter: signed HTTP messages in and out.

- `signing`: signatures, by Standard Webhooks and by the older scheme. Pure.
- `config`: the entry in adapters.json.
- `rotation`: the current secret and, for 24 hours after a change, the previous one.
- `replays`: the ids of accepted requests, on disk.
- `inbound`: one request: verify, publish, answer. `listener`: the HTTP server that all webhooks on a port share.
- `addresses`: which hosts and addresses may be reached. `outbound`: one message: sign, post, classify the response.
  `gone`: whether the receiver has answered 410, on disk.
- `adapter`: starts and stops the parts for the bus.
"""

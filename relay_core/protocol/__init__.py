"""The socket protocol, shared by server, client and dashboard.

`methods` has one row per method. Their models are in the modules named after groups (`publishing`, `consuming`, …), the
models of the state in `state` and `live_state`, that of the nightly report in `report`. `frames` is the codec. No
socket is opened here. May import `records` and below.
"""

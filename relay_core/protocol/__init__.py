"""The protocol of the socket, shared by server, client and dashboard.

`methods` has one row for each method; the modules named after groups (`publishing`, `consuming`, …) hold their models,
`state` and `live_state` those of the state, `report` that of the nightly report. `frames` is the codec. No socket is
opened here. May import `records` and below.
"""

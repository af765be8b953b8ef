"""The daemon: one bus, its adapters and its upkeep, on one Unix socket; and the commands that go with it.

Start at `supervisor.py`: what runs, and in which order it starts and stops. A request's way is `server.py` (who may
connect), `connection.py` (bytes, frames and their bounds), `methods/` (a flat table of handlers) and back. What
consumers have in hand is in `deliveries.py`, what dashboards see in `state_stream.py`, what runs by the clock in
`jobs.py`, what adapters.json asks for in `adapters/`. `process.py` makes a process of it, `commands.py` is
`relay-supervisor`, and `cli/` is `relay`, which knows only the client.
"""

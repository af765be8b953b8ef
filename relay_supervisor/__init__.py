"""The daemon (one bus, its adapters and its jobs, on one Unix socket) and its commands.

To read the code in twenty minutes, follow this order:

1. `supervisor.py` lists the parts of the daemon in the order in which they start; `process.py` adds signals, logs and
   systemd.
2. A request, from the socket to its answer: `server/` (connections, framing, flow control, tokens), then `api/`, where
   `methods/` is a flat table of handlers and `context.py` what they operate on.
3. In-flight messages of clients: `api/consumers.py` (pushed) and `api/claims.py` (pulled). A mistake here would lose or
   duplicate a message.
4. `jobs/` runs maintenance and the nightly report, `schedules/` publishes messages at set times, `adapters/` runs the
   platforms, `observability/` has logs, metrics and spans.
5. `agents/` has the registry of agents, the edits to their configuration, and ``relay mcp`` and ``relay hook``.

`cli/` is ``relay``, which uses only the client; `main.py` is ``relay-supervisor``, with `doctor/` and
`service_unit.py`.

Layers, top to bottom: main; process; supervisor; cli, doctor; api; adapters; jobs, schedules; agents; observability;
server; http, service_unit, systemd_notify. A module may import the layers below its own, and of the bus `RelayCore` and
the types around it, never `relay_core.bus`. Nothing here imports the dashboard or Spark.
"""

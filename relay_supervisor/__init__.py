"""The daemon: one bus, its adapters and its jobs, on one Unix socket; and the commands that go with it.

Each module opens with its rules. With twenty minutes, read in this order:

1. `supervisor.py` lists what runs, and in which order it starts and stops; `process.py` makes a process of it (signals,
   logs, systemd).
2. A request, from the socket to its answer: `server/` (who may connect, bytes and frames, flow control, tokens), then
   `api/`: `methods/` is a flat table of handlers, `context.py` what they are given.
3. A message in flight at a client: `api/consumers.py` (pushed) and `api/claims.py` (pulled). A mistake here would lose
   or double a message.
4. `jobs/` runs maintenance and the nightly Spark report. `adapters/` has its own tour. `observability/` has logs,
   metrics and traces, all without secrets.
5. `agents/`: who is registered, how an agent's own configuration is edited, and ``relay mcp`` and ``relay hook``, which
   agents start often and which import little (`light/`).

`cli/` is ``relay``, which knows only the client; `main.py` is ``relay-supervisor``, with `doctor/` and
`service_unit.py`.

Layers, top to bottom: main; process; supervisor; cli and doctor; api; adapters; jobs; agents; observability; server,
http. The bus is known by its public face, `RelayCore`.
"""

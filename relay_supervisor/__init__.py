"""The daemon: one bus, its adapters and its upkeep, on one Unix socket; and the commands that go with it.

A tour of twenty minutes. Each module opens with its rules; read those first, and the code where you doubt them.

1. What runs, and in which order it starts and stops: `supervisor.py`. It is the list of everything below.
   `process.py` makes a process of it (signals, `logs.py`, `notify.py` for systemd); `services.py` is what handlers get.
2. A request, from the socket to its answer: `server.py` (who may connect, and how all of it ends), `connection.py`
   (bytes, frames, and how much of them at a time; `pacing.py` knows the methods that need care) and `methods/`, a flat
   table of handlers. Who somebody is, and may do: `identity.py`, `tokens.py`.
3. A message in a consumer's hands, pushed or claimed: `deliveries.py`. The hardest part, and the one where a mistake
   would lose or double a message.
4. What runs by the clock: `jobs.py` (one run at a time, each with an end), `schedule.py` (when), `nightly.py` and
   `child.py` (Spark, in a process of its own), `reports.py` (what it leaves).
5. The outside: `adapters/`, which has a tour of its own.
6. What others see of it: `state_view.py` and `state_stream.py` (dashboards), `prometheus.py` and what it says in
   `prometheus_metrics.py`, `telemetry.py`. No secret goes along: `vault.py` (those we know), `redaction.py` (what looks
   like one).
7. Agents: `agents.py` (who there is), `agent_files/` (how an agent's own configuration is edited), `shim/` (``relay
   mcp`` and ``relay hook``, which an agent starts again and again: the standard library alone).

The commands stand beside all that. `cli/` is ``relay``, which knows only the client: begin with `cli/__init__.py`, then
`cli/command.py`. `commands.py` is ``relay-supervisor``, with `service.py` (systemd, launchd) and the doctor, which is
`doctor.py` (the list of its checks), `doctor_data.py`, `doctor_machine.py` and `survey.py` (what they look at).
"""

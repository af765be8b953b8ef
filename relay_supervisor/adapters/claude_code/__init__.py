"""Agents that are Claude Code sessions: a message on ``relay.agent.{name}`` is a turn, its answer goes to ``replyTo``.

A tour, in the order of a message:

- `config`: what adapters.json says of the agents; deny is the default.
- `adapter`: the seam to the bus: which subjects, one lane per agent, starting, stopping, health.
- `agent`: one agent: its turns, its live session, its idle time, the limits of a turn.
- `prompt`: what the model is told, with what strangers wrote fenced off.
- `session`: one running command-line program, spoken to through ``claude-agent-sdk``.
- `options`: what that program is started with: tools, permissions, environment.
- `turn`: from the stream of one turn to its outcome.
- `answer`: typing and progress while it runs, and the one result.
- `memory`: session ids on disk, so that a conversation survives a restart.
- `program`: where the program is, whether it is new enough, and how it is launched.
- `launcher`: a small program between us and it, which keeps our environment from it and ends all that it started.

`agent`, `session`, `options` and `turn` import the SDK, which is an extra: `adapter` imports them when it starts.
"""

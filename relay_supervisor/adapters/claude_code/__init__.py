"""Agents that are Claude Code sessions: a message to ``relay.agent.{name}`` is a turn, its answer goes to ``replyTo``.

In the order of a message:

- `config`: the agents' part of adapters.json; everything is denied by default.
- `adapter`: the adapter: subjects, one lane per agent, start, stop, health.
- `agent`: one agent: its turns, its session, its idle time, the limits of a turn.
- `prompt`: the prompt for a message, with untrusted text fenced off.
- `session`: a running command-line program, through ``claude-agent-sdk``.
- `options`: how that program is started: tools, permissions, environment.
- `turn`: reads the stream of a turn and determines its outcome.
- `answer`: typing and progress during a turn, and the answer.
- `memory`: session ids on disk, so that a conversation survives a restart.
- `program`: finds the program, checks its version, and writes the script that launches it.
- `launcher`: a small parent process that hides our environment from the program and ends all its processes.

`agent`, `session`, `options` and `turn` import the SDK. It is an extra, so `adapter` imports them when it starts.
"""

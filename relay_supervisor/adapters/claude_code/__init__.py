"""Agents that are Claude Code sessions: a message to ``relay.agent.{name}`` is a turn; its result goes to ``replyTo``.

In the order in which a message passes them:

- `config`: the agents in adapters.json; tools are denied by default.
- `adapter`: the seam to the bus: subjects, one lane per agent, start, stop, health.
- `agent`: one agent: its turns, its live session, its idle time, the limits of a turn.
- `prompt`: the text for the model, with untrusted text fenced.
- `session`: one running program, controlled through ``claude-agent-sdk``.
- `options`: how that program is started: tools, permissions, environment.
- `turn`: from the stream of one turn to its outcome.
- `answer`: typing and progress during a turn, and its result.
- `memory`: session ids on disk, so that a conversation survives a restart.
- `program`: finds the ``claude`` program, checks its version, and launches it.
- `launcher`: a small program in between, which passes on only the named variables and ends all child processes.

`agent`, `session`, `options` and `turn` import the SDK, which is an extra: `adapter` imports them when it starts.
"""

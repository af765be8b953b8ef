"""The adapters: what adapters.json asks for, and the platforms that are built in.

From the file to what runs: `file` (what the operator wrote, entry by entry), `loading` (an entry becomes an adapter:
its class is found, its config checked), `configured` (all of them started, watched over, restarted and reloaded).

Each platform is a package that knows the seam (`relay_core.adapters.interface`) and nothing of the supervisor; its
docstring is a tour. Begin with `webhook`, whose two ways are two modules; `telegram` has people behind it,
`claude_code` agents that work for minutes, and `nats` other relays. `budget_headers` carries a budget across a bridge.
"""

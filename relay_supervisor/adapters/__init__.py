"""Adapters: those that adapters.json lists, and the built-in platforms.

From the file to a running adapter: `file` parses adapters.json entry by entry, `loading` finds an entry's class and
checks its config, `configured` starts, probes, restarts and reloads the adapters.

Each platform is a package that depends on the adapter interface (`relay_core.adapters.interface`) and on nothing of
the supervisor; its docstring lists its modules. Start with `webhook`, the simplest; `telegram` connects people,
`claude_code` runs agents, and `nats` connects relays. They share `platform` (configs, lifecycle) and `budget_headers`
(a budget as headers of another transport).
"""

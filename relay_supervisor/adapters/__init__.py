"""The adapters in adapters.json, and the built-in platforms.

`file` reads the entries, `loading` finds the class of each and checks its config, `configured` starts, monitors,
restarts and reloads them. Each platform is a package whose docstring lists its modules; `webhook` is the one to read
first. `budget_headers` carries a budget across a bridge. A platform may import `relay_core`, `relay_supervisor.http`,
`jobs.subprocess` and `budget_headers`, but no other platform, and nothing of the supervisor that runs it.
"""

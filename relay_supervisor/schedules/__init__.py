"""Messages published at set times: the schedules of config.json.

`due_times` computes when a schedule is due, `state_file` keeps what must survive a restart, `schedules` publishes.
Imports only `relay_core`.
"""

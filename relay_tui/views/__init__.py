"""The screens, a module or a package each; `relay_tui.screens.SCREENS` lists them.

Shared parts: `states` (signs and words of states), `facts` (names with values), `excerpt` (the start of a payload),
`wrap` (long lines), `job_runs` (running a job).
"""

"""The screens, a module or a package each; `relay_tui.screens.SCREENS` lists them.

What several of them are made of stands beside them: `states` (marks and words), `facts` (names and values), `excerpt`
(the beginning of a payload), `wrap` (what is too long for a row), `job_runs` (a run of a job).
"""

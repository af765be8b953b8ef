"""The screens, a module or a package each; `relay_tui.screens.SCREENS` lists them.

Parts that several screens share are beside them: `states` (marks and labels), `facts` (names and values), `excerpt`
(the beginning of a payload), `wrap` (long rows), `job_runs` (one run of a job). May import `shell` and below.
"""

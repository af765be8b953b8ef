"""Dead letters after they were written: their store, and replays, which are planned (`replay_planner`) and then run.

Writing a dead letter belongs to `dispatch` and `pipeline`. May import `pipeline` and below.
"""

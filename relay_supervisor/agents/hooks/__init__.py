"""`relay hook`: what an agent's hooks run at the start of a session, at each prompt and at each stop.

Every prompt starts one, so it imports the standard library only, and only light parts of it.
"""

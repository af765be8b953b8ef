"""`relay hook`, which an agent's hooks run at session start, at each prompt and at each stop."""

"""`relay hook`: shows an agent its unread mail at session start, at each prompt and at each stop.

`shapes` has the input and output formats of each agent, `text` the text that is shown. Every prompt starts this
program: it imports `light` and a few standard modules only.
"""

"""Traces: `view` has the search (`query`, `list`) and the open trace (`open`, `pane`).

`waterfall` places spans on one axis, `spans` makes rows of them, `detail` tells one in full, in `words` of their own.
"""

"""Traces: `view` shows the message list (`feed`, `query`, `trace_list`) or an open trace (`open_trace`, `pane`).

`waterfall` places spans on a time axis, `spans` formats its rows, `detail` one span in full; `status` has the labels.
"""

"""The overview: `panel_grid` paints the panels with one cursor, `layout` places them.

`traffic_panels`, `problem_panels` and `event_panel` provide their content (`panel_content`).
"""

"""The overview: `view` assembles it, `board` and `column` paint it with one cursor, `layout` places the panels.

`panels`, `troubles` and `events` fill them, with the building blocks in `parts`.
"""

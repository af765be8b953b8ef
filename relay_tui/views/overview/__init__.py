"""The overview: `view` puts it together, `board` and `column` paint it with one cursor, `layout` places the panels.

`panels`, `troubles` and `events` say what stands in them, in words of `parts`.
"""

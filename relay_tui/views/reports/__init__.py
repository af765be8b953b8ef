"""Reports: `view` has list and rows, `layout` fits them to the screen.

`sections` turns any report.json into bounded tables, by its shape, `nightly` the one that Spark makes, by its content.
"""

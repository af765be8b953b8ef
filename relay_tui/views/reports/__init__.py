"""Reports: `view` has the list and the rows, `layout` fits them to the screen.

`nightly` shows Spark's report by its content; `sections` turns any other report.json into bounded tables, by its shape.
"""

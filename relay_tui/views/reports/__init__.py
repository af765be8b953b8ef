"""Reports: `view` has the list and the open report, `layout` fits tables to the screen.

`nightly` turns Spark's report into sections by its schema, `sections` any other JSON document by its shape.
"""

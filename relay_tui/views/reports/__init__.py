"""Reports: `view` has list and rows, `sections` turns any report.json into bounded tables, `layout` fits them."""

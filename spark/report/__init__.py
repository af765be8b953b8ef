"""The report that people read: plain rows in, report.json and report.html out. Nothing here knows Spark.

`build` puts a report together (headline, findings, plots, tables), `page` makes the HTML of it. The dashboard and
``relay report show`` read report.json alone, so whatever they say must be in it.
"""

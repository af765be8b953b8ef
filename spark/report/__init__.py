"""The report: plain rows in, report.json and report.html out. Nothing here imports Spark.

`build` assembles the report (headline, findings, plots, tables), `page` renders it as HTML. The dashboard and
``relay report show`` read only report.json, so everything they show is in it.
"""

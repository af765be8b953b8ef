"""The report that people read: plain rows in, report.json and report.html out.

`build` assembles a report (headline, findings, plots, tables), `page` renders it as HTML. The dashboard and
``relay report show`` read only report.json, so it must contain everything they show. Does not import Spark; of the bus
it imports the report's schema and the text kit.
"""

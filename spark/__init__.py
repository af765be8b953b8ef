"""From the bus's events to a nightly report that people read, with PySpark.

Where to begin: `nightly.py` is one run, `one_day.py` one day of it, `tables/__init__.py` the list of tables, each a
pure function in a module of its own, and `report/shown.py` what the page shows of them. Events come in by `ingest.py`;
`storage.py` is the only module that puts anything in its place; `session.py` opens Spark wherever it runs.

Nothing of the bus is imported but the event schema (`relay_core.events`), and nothing here runs in the supervisor's
process: it starts ``python -m spark`` and reads `report.json`.
"""

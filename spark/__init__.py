"""From the event log to the nightly report, with PySpark.

To read the code in twenty minutes, follow this order:

1. `nightly` is one run: it determines the pending days (`days`) before it starts Spark, then reports on each.
2. `events/ingest` turns sealed segments of the event log into Parquet, once each. `events/manifest` records the
   ingested segments; writing it is the commit.
3. `one_day` goes from a day's events to its report, using the next three.
4. `events/sources` has the passes over the events that all tables share, `events/schema` their columns.
5. `tables` lists the tables, each a pure function with its own module. Read `tables.refusals`, the simplest, then
   `tables.breakers` with `intervals`, then `tables.latency` with `percentiles`; last `tables.daily` (the day's
   numbers), `tables.anomalies` (compared with earlier days) and `tables.carry_over` (still open).
6. `report` turns rows into report.json and report.html, without Spark: `report.layout` lists what is shown,
   `report.findings` writes the sentences at the top, `report.page` the HTML.

`storage` is the only package that moves finished files into place; its docstrings say what a kill can leave behind.
`engine` starts Spark and finds Java, `settings` reads config.json, `progress` reports to the supervisor.

Of the bus it imports the schemas of events and of the report, and the text kit. It never runs in the supervisor's
process: that starts ``python -m spark`` and reads report.json.
"""

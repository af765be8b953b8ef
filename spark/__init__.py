"""From the bus's events to a nightly report, with PySpark.

A tour, in this order:

1. `nightly`: one run. It decides which days to process (`days`) before it starts Spark, then processes them in order.
2. `events.ingest`: sealed segments of the event log become Parquet by date and kind, once each. `events.parse_lines`
   decides which lines are events; writing `events.manifest` is the commit.
3. `one_day`: from one day's events to its report, which is swapped in whole.
4. `events.sources`: the three passes over the events that all tables share. `events.schema` has the columns.
5. `tables`: the list of tables, each a pure function in its own module. Start with `tables.refusals`, the simplest,
   then `tables.breakers` with `intervals` (how long a state lasted) and `tables.latency` with `percentiles`.
   `tables.daily` holds the day's numbers, `tables.anomalies` compares them with earlier days, `tables.carry_over`
   lists the states still open.
6. `report`: plain rows in, report.json and report.html out, without Spark. `report.layout` lists the tables shown,
   `report.findings` writes the sentences at the top, `report.page` the page.

Around it: `storage` puts files in place and documents what a kill can leave; `engine` opens Spark on this machine, on a
cluster or over Connect; `settings` reads config.json; `progress` reports to the supervisor; `__main__` is the command.

Of the bus, only the event and report schemas and the text formatting are imported. Nothing here runs in the
supervisor's process: the supervisor starts ``python -m spark`` and reads report.json.
"""

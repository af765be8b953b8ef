"""From the bus's events to a nightly report that people read, with PySpark.

A tour of twenty minutes, in this order:

1. `nightly`: one run. It finds out what is behind (`days`) before it starts Spark, and makes a day after the other.
2. `ingest`: sealed segments of the event log become Parquet by date and kind, once each. `lines` says which lines are
   events, `manifest` what has been taken; writing it is the commit.
3. `one_day`: from a day's events to its report, swapped in whole. Its parts are the next three stops.
4. `sources`: the three passes over the events, which all tables share. `schema` has their columns, and `Day`.
5. `tables`: the list of tables, each a pure function in a module of its own. Read `tables.refusals`, the simplest, then
   `tables.breakers` with `intervals` (how long a state lasted), then `tables.latency` with `percentiles`. At the end
   `tables.daily` (the day's numbers), `tables.anomalies` (against those before), `tables.carry_over` (still open).
6. `report`: plain rows in, report.json and report.html out, without Spark. `report.shown` is the list of what is shown,
   `report.findings` the sentences on top, `report.page` the page.

Around it: `storage` is the only module that puts anything in its place, and says what a kill can leave (`dated`: tables
kept by day); `session` opens Spark here, on a cluster or over Connect, on the Java of `java`, sooner by `archive`;
`settings` are config.json's, `progress` is what the supervisor reads meanwhile, `__main__` the command line.

Of the bus, only the event schema (`relay_core.records.events`) is imported, and nothing here runs in the supervisor's
process: it starts ``python -m spark`` and reads report.json.
"""

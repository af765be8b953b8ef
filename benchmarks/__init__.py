"""How fast the bus is, in ratios measured within one run: ``python -m benchmarks``. No test asserts a time.

A tour, in this order:

1. `harness`: how things are measured here, and why so: base, subject, base again, and the median of the ratios.
2. `floor`: what the bus is measured against, a bare loop that makes the same files.
3. `cases`: the goals of the bus, one function for each way of measuring; `BUS_CASES` at its end is the list. The others
   are made alike: `socket_cases`, `adapter_cases`, `agent_cases` and `mcp_cases` (what agents start), `search_cases`
   (the index), `tui_cases` (the dashboard on a real terminal), `spark_cases` (the nightly report, against DuckDB),
   `first_run_cases` (README's run command from nothing).
4. `__main__`: all lists together, the command line, and the lines of JSON.

What cases use: `running` (a bus in this process), `daemon` (a supervisor in its own), `servers`, `nats_server` (other
programs, which never outlive the run), `place` (the directory of a run), `spark_events` (a day of made-up events),
`tui_probe` (the lag of the dashboard's loop), `duckdb_tables`.

`compare` is a command of its own, ``python -m benchmarks compare``: the bus against what people would use instead. Its
docstring says what is equal there, what is not, and in whose favour.
"""

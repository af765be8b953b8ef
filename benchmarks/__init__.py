"""How fast the bus is, in ratios measured within one run: ``python -m benchmarks``. No test asserts a time.

1. `harness`: how measurements are taken, and why: base, subject, base again, and the median of the ratios.
2. `rig.floor`: the base, a bare loop that makes the same files.
3. `cases`: one module for each part of the product, each with its list of cases.
4. `__main__`: all lists together, the command line, and the lines of JSON.

`rig` also has the bus in this process (`running`), a supervisor in another (`daemon`), other servers, which never
outlive the run (`servers`, `nats_server`), the directory of a run (`workplace`), a generated day of events
(`spark_events`) and the lag of the dashboard's loop (`tui_probe`).

`compare` is a separate command, ``python -m benchmarks compare``: the bus against alternatives. Its docstring says what
is equal there, what is not, and in whose favour.
"""

"""The tests; ``python3 -m tests`` sets up everything and runs them all (see CONTRIBUTING.md for less than all).

Tests mirror the packages and read like the rules they hold; their names are sentences. A tour, in this order:

1. `guards`: what every test is held to, whatever it tests: it blocks no event loop, and leaves nothing behind.
2. `core.test_pipeline` and `core.test_trie`: rules with tables of cases, laws by Hypothesis. Time is a FakeClock.
3. `core.crash`: what is promised of kills, full disks and power loss. Real processes die there.
4. `supervisor.daemon` runs a supervisor in a process, `supervisor.inside` in the test's own, `cli_runner` runs the
   commands; `supervisor.test_methods` calls every method of the socket, well and badly.
5. `tui.desk` works the dashboard by keys without a terminal, `tui.terminal` has a real one. `tui.test_shell` is a good
   first read; `tui.test_frames` compares every screen with its picture; `tui.hostile` is what strangers may write.
6. `spark.events` makes rows, `spark.test_breakers` is a table from events in to rows out; `spark.test_nightly` tells of
   nights that follow each other, `spark.test_end_to_end` runs one on what a real bus has written.
7. Beside this file: the programs of README and examples, the benchmarks, the wheel without a checkout (`installed`).

`serial` says what runs beside what, `conftest` has the fixtures that all share, `__main__` is the command, and `keeper`
sees to it that nothing outlives it.
"""

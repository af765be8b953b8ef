"""The tests; ``python3 -m tests`` sets up everything and runs them all (CONTRIBUTING.md shows how to run fewer).

Tests mirror the packages and read like the rules they hold; their names are sentences. A tour:

1. `kit` has what tests share: fixtures, waiting, listeners, processes, servers. `kit.guards` holds every test to some
   rules: it blocks no event loop and leaves nothing behind.
2. `core.pipeline.test_stages` and `core.messages.test_trie`: rules as tables of cases, laws by Hypothesis. Time is a
   FakeClock.
3. `core.crash`: kills, full disks and power loss. Real processes die there.
4. `supervisor.api` calls every method of the socket, well and badly; `supervisor.cli` runs the commands.
5. `tui.driver` works the dashboard by keys without a terminal. `tui.test_shell` is a good first read; `tui.test_frames`
   compares every screen with its picture; `tui.hostile` is what other users may write.
6. `spark.test_breakers` is a table from events in to rows out; `spark.test_nightly` covers successive nights,
   `spark.test_end_to_end` runs one on the events of a real bus.
7. Beside this file: the programs of README and examples, the benchmarks, the installed wheel.

`__main__` is the command; `kit.keeper` ends every process that it started, and `kit.serial` orders tests that measure.
"""

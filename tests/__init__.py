"""The tests, which mirror the packages; `python3 -m tests` sets up everything and runs them all."""

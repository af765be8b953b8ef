"""How fast the bus is, in ratios measured within one run. Run it with ``python -m benchmarks``; no test asserts a time.

`cases.py` is the list of goals, `harness.py` the way of measuring, `floor.py` what the bus is measured against.
`compare/` is a command of its own: the bus against what people would use instead.
"""

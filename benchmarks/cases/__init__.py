"""The cases of `python -m benchmarks`, by the part that they measure."""

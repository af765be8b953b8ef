"""Percentiles of raw values by the textbook: not the way the code under test works them out."""

from __future__ import annotations

from collections.abc import Sequence


def three_digits(us: int) -> int:
    """Round down to three significant digits, by its text."""
    digits = str(max(us, 0))
    return int(digits[:3] + "0" * (len(digits) - 3))


def nearest_rank(values: Sequence[int], percent: int) -> int:
    """Return the smallest value that at least so many percent do not exceed."""
    ranked = sorted(values)
    return ranked[-(-len(ranked) * percent // 100) - 1]

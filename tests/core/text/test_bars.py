"""Bars and spark lines have their width, whatever the numbers are."""

from __future__ import annotations

import pytest

from relay_core.text.bars import bar, spark


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.001, 0.5, 0.99, 1.0, 7.0])
def test_a_bar_has_its_width_whatever_the_share(share: float) -> None:
    drawn = bar(share, 10)
    assert len(drawn) == 10
    assert (drawn.strip() == "") == (share <= 0)
    assert (drawn == "█" * 10) == (share >= 1)


def test_a_spark_line_shows_the_newest_on_the_right() -> None:
    assert spark([0, 1, 8], 5) == "  " + " ▂█"
    assert spark(range(100), 3)[-1] == "█"
    assert spark([], 4) == "    "
    assert spark([0, 0], 4) == "    "


def test_a_spark_line_tells_zero_from_unknown() -> None:
    assert spark([0, 1, None, 8]) == " ▂·█"
    assert spark([]) == ""


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan"), 1e308, -1e308])
def test_no_number_from_outside_breaks_a_bar(odd: float) -> None:
    assert len(bar(odd, 5)) == 5
    assert len(spark([odd, 1], 5)) == 5

"""Instants: every millisecond of the years 1 to 9999 has one text, which is read back as the same millisecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.clock import LAST_MS, iso, parse_iso

FIRST_MS = parse_iso("0001-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (1_700_000_000_999, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001_000, "2023-11-14T22:13:21.000Z"),
        (FIRST_MS, "0001-01-01T00:00:00.000Z"),
        (LAST_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_an_instant_has_its_milliseconds_and_ends_in_z(ms: int, text: str) -> None:
    assert iso(ms) == text


@given(st.lists(st.integers(FIRST_MS, LAST_MS), min_size=1, max_size=5), st.lists(st.integers(-2000, 2000)))
def test_an_instant_is_read_back_as_it_was(instants: list[int], steps: list[int]) -> None:
    near = [min(max(instants[0] + step, FIRST_MS), LAST_MS) for step in steps]  # of the same second, and of others
    for ms in instants + near:
        assert parse_iso(iso(ms)) == ms

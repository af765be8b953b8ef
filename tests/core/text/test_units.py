"""Numbers, durations and instants read the same on every screen, and no number from outside breaks them."""

from __future__ import annotations

from typing import Any

import pytest

from relay_core.text.units import (
    about,
    ago,
    change,
    clock_time,
    date_time,
    format_count,
    format_duration,
    format_value,
    number,
    parse_duration,
    percent,
    plural,
    size,
    time_until,
    typed_duration,
)


@pytest.mark.parametrize(
    ("seconds", "narrow", "spaced"),
    [
        (None, "–", "–"),
        (-1, "0s", "0 s"),
        (0, "0s", "0 s"),
        (0.0004, "400µs", "400 µs"),
        (0.0091, "9ms", "9.1 ms"),
        (0.012, "12ms", "12 ms"),
        (0.5917, "592ms", "592 ms"),
        (0.9996, "1.0s", "1 s"),
        (4.24, "4.2s", "4.2 s"),
        (9.96, "10s", "10 s"),
        (27.32, "27s", "27.3 s"),
        (59.6, "1m00s", "1 min"),
        (190, "3m10s", "3 min 10 s"),
        (5 * 3600 + 125, "5h02m", "5 h 2 min"),
        (3 * 86_400 + 4 * 3600, "3d04h", "3 d 4 h"),
        (1000 * 86_400, "1000d00h", "1,000 d"),
    ],
)
def test_a_duration_has_its_largest_units(seconds: float | None, narrow: str, spaced: str) -> None:
    assert format_duration(seconds) == narrow
    assert format_duration(seconds, spaced=True) == spaced


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.4, "0s"), (119, "119s"), (121, "2m"), (7300, "2h"), (200_000, "2d")]
)
def test_what_is_counted_before_the_eyes_has_one_unit(seconds: float | None, text: str) -> None:
    assert about(seconds) == text


def test_instants_are_told_from_now() -> None:
    assert ago(1000, 6000) == "5s ago"
    assert ago(None, 6000) == time_until(None, 6000) == "–"
    assert time_until(9000, 6000) == "in 3s"
    assert time_until(6900, 6000) == "now"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.44, "0.4"), (7, "7"), (12.6, "13"), (1234, "1,234"), (56_700, "56.7k"), (1_200_000, "1.2M")],
)
def test_a_number_stays_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_sizes_and_counts() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 52_588_800: "50 MiB", 5 << 30: "5.0 GiB", 1 << 50: "1,024 TiB"}
    assert {value: size(value) for value in sizes} == sizes
    assert [format_count(value) for value in (7, 2.25, 1234.5, 1_234_567)] == ["7", "2.2", "1,234", "1,234,567"]
    assert plural(1, "mailbox", "mailboxes") == "1 mailbox"
    assert plural(1200, "message") == "1,200 messages"


def test_shares_and_changes() -> None:
    assert [percent(share) for share in (0, 0.0237, 0.5, 1, 1.04)] == ["0%", "2.4%", "50%", "100%", "104%"]
    changes = {0.119: "+12%", -0.4: "−40%", 0.001: "±0%", 2.4: "×3.4", 20: "×21", None: "–"}
    assert {share: change(share) for share in changes} == changes


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (182_000, "us", "182 ms"),
        (95_400, "ms", "1 min 35 s"),
        (0, "secs", "0 s"),
        (-5, "secs", "−5 s"),
        (1536, "bytes", "1.5 KiB"),
        (0.0237, "share", "2.4%"),
        (14, "hour", "14:00"),
        (99, "hour", "99"),
        (1773478984000, "time", "09:03:04"),
        ("14:05", "time", "14:05"),
        (10**18, "time", "–"),
        (None, "us", "–"),
        (True, "flag", "yes"),
        (1234.5, "count", "1,234"),
        (1.5, "parsecs", "1.5"),
        (10**400, "count", "–"),
        ("\x1b[2J", "count", "␛[2J"),
        ("x" * 1000, "text", "x" * 299 + "…"),
    ],
)
def test_a_value_is_shown_with_its_unit(value: Any, unit: str, text: str) -> None:
    assert format_value(value, unit, spaced=True) == text


@pytest.mark.parametrize(
    "odd", [float("inf"), float("-inf"), float("nan"), 1e308, -1e308, 253_402_300_800_000.0, -62_135_596_800_001.0]
)
def test_no_number_from_outside_breaks_a_word(odd: float) -> None:
    for shown in (format_duration, about, number, format_count, size, percent, change, clock_time, date_time):
        assert len(shown(odd)) <= 20
    assert ago(odd, 0)
    assert time_until(odd, 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        (" 10 m ", 600_000),
        ("1.5h", 5_400_000),
        ("0.1s", 100),
        ("250ms", 250),
        ("2w", 14 * 86_400_000),
        ("0s", 0),
        ("1000000000000s", 10**15),
        ("1000000000000.1s", None),
        ("999999999999999w", None),
        ("soon", None),
        ("1y", None),
        ("10", None),
        ("-1s", None),
        ("", None),
    ],
)
def test_a_typed_duration_is_a_number_and_a_unit(text: str, ms: int | None) -> None:
    assert parse_duration(text) == ms
    if ms is not None:
        assert parse_duration(typed_duration(ms)) == ms

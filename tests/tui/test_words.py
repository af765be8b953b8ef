from __future__ import annotations

import pytest

from relay_tui.words import about, ago, ahead, bar, clock_time, date_time, lasting, number, plural, size, spark


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (-1, "0µs"),
        (0.00085, "850µs"),
        (0.012, "12ms"),
        (4.24, "4.2s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (190, "3m10s"),
        (5 * 3600 + 125, "5h02m"),
        (3 * 86_400 + 4 * 3600, "3d04h"),
    ],
)
def test_a_duration_is_told_in_its_largest_unit(seconds: float | None, text: str) -> None:
    assert lasting(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.4, "0s"), (119, "119s"), (121, "2m"), (7300, "2h"), (200_000, "2d")]
)
def test_what_is_counted_before_the_eyes_has_one_unit(seconds: float | None, text: str) -> None:
    assert about(seconds) == text


def test_instants_are_told_from_now() -> None:
    assert ago(1000, 6000) == "5s ago"
    assert ago(None, 6000) == ahead(None, 6000) == "–"
    assert ahead(9000, 6000) == "in 3s"
    assert ahead(6900, 6000) == "now"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.44, "0.4"), (7, "7"), (12.6, "13"), (1234, "1,234"), (56_700, "56.7k"), (1_200_000, "1.2M")],
)
def test_a_number_stays_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_sizes_and_counts() -> None:
    assert [size(count) for count in (0, 1023, 1536, 20_480, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "20 KiB",
        "5.0 GiB",
    ]
    assert plural(1, "mailbox", "mailboxes") == "1 mailbox"
    assert plural(1200, "message") == "1,200 messages"


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


@pytest.mark.parametrize(
    "odd", [float("inf"), float("-inf"), float("nan"), 1e308, -1e308, 253_402_300_800_000.0, -62_135_596_800_001.0]
)
def test_no_number_from_outside_breaks_a_word(odd: float) -> None:
    assert all(isinstance(word(odd), str) for word in (lasting, about, number, clock_time, date_time))
    assert ago(odd, 0)
    assert ahead(odd, 0)
    assert len(bar(odd, 5)) == 5
    assert len(spark([odd, 1], 5)) == 5

"""Cron expressions are those of crontab(5); what they cannot say is refused with the field's name."""

from __future__ import annotations

import pytest

from relay_core.cron import parse_cron

ALL = frozenset(range(7))


@pytest.mark.parametrize(
    ("text", "weekdays"),
    [
        ("*", ALL),
        ("0", {0}),
        ("7", {0}),
        ("sun", {0}),
        ("Mon-Fri", {1, 2, 3, 4, 5}),
        ("fri-sun", {5, 6, 0}),
        ("5-7", {5, 6, 0}),
        ("0-7", ALL),
        ("*/2", {0, 2, 4, 6}),
        ("1-5/2,6", {1, 3, 5, 6}),
    ],
)
def test_sunday_is_0_and_7(text: str, weekdays: set[int]) -> None:
    assert parse_cron(f"0 9 * * {text}").weekdays == weekdays


def test_every_field_is_a_list_of_values_and_ranges() -> None:
    cron = parse_cron(" */20  8-10,22 1-31/15 jan,6 * ")
    assert cron.minutes == {0, 20, 40}
    assert cron.hours == {8, 9, 10, 22}
    assert cron.days == {1, 16, 31}
    assert cron.months == {1, 6}
    assert (cron.any_day, cron.any_weekday) == (False, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * *", "5 fields"),
        ("* * * * * *", "has 6"),
        ("@daily", "5 fields"),
        ("60 * * * *", "minute: '60' is not between 0 and 59"),
        ("* 24 * * *", "hour"),
        ("* * 0 * *", "day of the month"),
        ("* * * 13 *", "month"),
        ("* * * mon *", "month: 'mon'"),
        ("* * * * 8", "day of the week"),
        ("* * * * fri-mon", "ends before it begins"),
        ("5-1 * * * *", "ends before it begins"),
        ("*/0 * * * *", "step of 0"),
        ("5/10 * * * *", "needs a range"),
        ("1,,2 * * * *", "is not a value"),
        ("-1 * * * *", "is not a value"),
        ("٣ * * * *", "is not a value"),
        ("0 0 30 2 *", "never matches"),
        ("0 0 31 feb,apr,jun *", "never matches"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_cron(text)


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 30 2 mon", "0 0 31 1,2 *"])
def test_a_rare_expression_is_accepted(text: str) -> None:
    parse_cron(text)

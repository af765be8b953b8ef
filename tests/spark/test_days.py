"""Which days a run makes."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from spark.days import Request, choose

TODAY = date(2026, 3, 20)


def day(ago: int) -> date:
    return TODAY - timedelta(days=ago)


def chosen(
    request: Request, *, fresh: tuple[int, ...] = (), known: tuple[int, ...] = (), behind: tuple[int, ...] = ()
) -> list[int]:
    """Return how many days ago the chosen days are."""
    days = choose(
        request,
        TODAY,
        fresh=[day(ago) for ago in fresh],
        known=[day(ago) for ago in known],
        is_behind=lambda day: (TODAY - day).days in behind,
    )
    return [(TODAY - day).days for day in days]


def test_by_itself_a_run_makes_what_is_behind_oldest_first_and_leaves_today_to_tomorrow() -> None:
    assert chosen(Request(), fresh=(0, 1, 30), known=(1, 2, 3, 80), behind=(2, 80)) == [80, 30, 2, 1]


def test_asked_by_hand_it_makes_today_too_if_there_are_events() -> None:
    assert chosen(Request(today=True), fresh=(0, 1)) == [1, 0]
    assert chosen(Request(today=True), known=(0, 1)) == []


def test_a_named_day_is_made_whatever_there_is() -> None:
    assert chosen(Request(date=day(5)), fresh=(1, 5), known=(2,), behind=(2,)) == [5]
    assert chosen(Request(date=day(0))) == [0]


def test_a_range_is_made_again_where_there_are_events() -> None:
    assert chosen(Request(since=day(4)), fresh=(0, 2), known=(1, 4, 5)) == [4, 2, 1, 0]
    assert chosen(Request(since=day(4), until=day(2)), fresh=(0, 2), known=(1, 4, 5)) == [4, 2]


def test_a_backfill_makes_every_day_that_has_events() -> None:
    assert chosen(Request(backfill=True), fresh=(0, 2), known=(1, 80)) == [80, 2, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"date": TODAY, "since": TODAY},
        {"since": TODAY, "backfill": True},
        {"until": TODAY},
        {"since": TODAY, "until": day(1)},
    ],
    ids=["date and range", "range and backfill", "an end alone", "an end before the beginning"],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, date | bool]) -> None:
    with pytest.raises(ValueError, match=r"give only one of|needs a start"):
        Request(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("request_", [Request(date=day(-1)), Request(since=day(-1))], ids=["a day", "a range"])
def test_days_to_come_are_refused(request_: Request) -> None:
    with pytest.raises(ValueError, match="is in the future"):
        chosen(request_)

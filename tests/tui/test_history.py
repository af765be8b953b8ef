from __future__ import annotations

from relay_core.protocol.live_state import LiveState
from relay_tui.live.history import KEPT_SECS, History, TimeSeries


def test_a_change_is_told_over_the_time_it_was_watched() -> None:
    track = TimeSeries()
    assert track.change("a", 5, 60) == (0, 0.0)
    for second in range(10):
        track.note(float(second), {"a": second})
    assert track.change("a", 9, 60) == (9, 9.0)
    assert track.change("a", 9, 4) == (4, 4.0)
    assert track.change("new", 3, 4) == (3, 4.0)
    assert track.series("a", 3) == [7, 8, 9]


def test_samples_are_at_most_one_a_second_and_bounded() -> None:
    track = TimeSeries()
    for tick in range(KEPT_SECS * 10):
        track.note(tick / 5, {"a": tick})
    assert len(track.series("a", 10_000)) == KEPT_SECS


def test_a_mailbox_is_drained_at_the_pace_of_the_last_half_minute() -> None:
    history = History()
    for second, depth in enumerate([100, 90, 80]):
        history.depth.note(float(second), {"box": depth})
    assert history.drained_in("box", 80) == 8.0
    assert history.drained_in("box", 0) is None
    assert history.drained_in("box", 120) is None


def test_an_empty_picture_is_remembered_as_such() -> None:
    history = History()
    history.note(LiveState())
    assert history.dead.series("", 10) == [0]

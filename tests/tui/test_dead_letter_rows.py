from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.dead_letter import DeadLetterFilter, DeadLetterSummary
from relay_core.messages.filter_language import Term, parse_filter
from relay_core.messages.replay_plan import ReplayOutcome
from relay_core.protocol.deadletters import DeadLetterSummaries
from relay_tui.views.dead_letters.detail import reason_lines
from relay_tui.views.dead_letters.difference import diff_lines, difference
from relay_tui.views.dead_letters.rows import LetterRows, first_rows
from relay_tui.views.dead_letters.runs import interrupted
from relay_tui.views.dead_letters.selection import LetterSelection, MarkedKeys, is_half_typed, selection_of
from relay_tui.views.excerpt import excerpt_lines
from relay_tui.views.facts import instant


def summary(number: int) -> DeadLetterSummary:
    return DeadLetterSummary(
        message_id=f"{number:026}",
        endpoint_hash="h",
        endpoint_subject="relay.a",
        subject="relay.a",
        sender="relay.b",
        code="no_match",
        reason="nobody",
        failed_at=1.0,
        replays=0,
        size=1,
    )


def page_of(numbers: set[int], after: str | None, limit: int) -> DeadLetterSummaries:
    """Answer as the supervisor does: newest first, after a key, with a cursor if there is more."""
    rest = [row for row in map(summary, sorted(numbers, reverse=True)) if after is None or row.cursor < after]
    rows = rest[:limit]
    cursor = rows[-1].cursor if len(rest) > limit else None
    return DeadLetterSummaries(rows=rows, total=len(numbers), cursor=cursor)


def keys(rows: LetterRows) -> list[str]:
    return [rows[at].key for at in range(len(rows))]


DAY = 86_400_000
NOW = 1_700_000_000_000
DAYS = NOW - 30 * DAY
NUMBERS = st.sets(st.integers(0, 60), max_size=40)


@given(NUMBERS, NUMBERS, st.integers(1, 9), st.integers(0, 5), st.integers(0, 40), st.integers(1, 9))
def test_a_page_is_the_truth_about_its_stretch_whatever_was_held(
    before: set[int], after: set[int], limit: int, pages: int, at: int, window: int
) -> None:
    rows = first_rows(page_of(before, None, limit))
    for _ in range(pages):
        if rows.cursor is not None:
            rows.put(page_of(before, rows.cursor, limit), after=rows.cursor)
    begin = rows.key_before(min(at, len(rows)))
    page = page_of(after, begin, window)
    is_last = not any(key < (page.cursor or "") for key in keys(rows))
    rows.put(page, after=begin)

    held = keys(rows)
    assert held == sorted(held, reverse=True)
    assert all(rows.find(key) == at for at, key in enumerate(held))
    stretch = [key for key in held if (begin is None or key < begin) and key >= (page.cursor or "")]
    assert stretch == [row.cursor for row in page.rows]
    if is_last:  # what is beyond can be got from here on
        while rows.cursor is not None:
            rows.put(page_of(after, rows.cursor, limit), after=rows.cursor)
        rest = [key for key in keys(rows) if begin is None or key < begin]
        assert rest == [row.cursor for row in page_of(after, begin, 100).rows]


@given(NUMBERS, st.integers(-1, 61))
def test_a_key_that_is_not_there_has_a_place_all_the_same(numbers: set[int], other: int) -> None:
    rows = first_rows(page_of(numbers, None, 100))
    key = f"{other:026}/h" if other >= 0 else ""
    assert rows.place(key) == sum(number > other for number in numbers)
    assert (rows.find(key) is not None) == (other in numbers)


def test_everything_behind_a_filter_is_marked_as_that_minus_what_was_unmarked() -> None:
    marks = MarkedKeys()
    marks.mark_everything()
    marks.toggle("B/h")
    assert "A/h" in marks
    assert "B/h" not in marks
    meant = selection_of(marks, ' reason~"no stock" ', "C/h")
    assert meant is not None
    assert meant.ids is None
    assert parse_filter(meant.where) == (Term("reason", "~", "no stock"), Term("id", "=", "B/h", negated=True))


@pytest.mark.parametrize(
    ("marked", "key", "meant"),
    [
        ((), None, None),
        ((), "A/h", LetterSelection(ids=("A/h",))),
        (("C/h", "B/h"), "A/h", LetterSelection(ids=("B/h", "C/h"))),
    ],
    ids=["nothing", "the row under the cursor", "what is marked, not the row"],
)
def test_what_an_action_is_about(marked: tuple[str, ...], key: str | None, meant: LetterSelection | None) -> None:
    marks = MarkedKeys()
    for key in marked:
        marks.toggle(key)
    assert selection_of(marks, "code=x", key) == meant


@pytest.mark.parametrize(
    ("text", "is_half"),
    [
        ("rea", True),
        ("!rea", True),
        ("code=a to", True),
        ("reason~x", False),
        ("order", False),
        ("to ", False),
        ("", False),
    ],
)
def test_a_name_of_a_field_is_half_typed(text: str, is_half: bool) -> None:
    assert is_half_typed(text) is is_half


def plain(lines: list[tuple[tuple[str, str], ...]]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_a_difference_has_some_lines_around_it_and_is_bounded() -> None:
    before = "\n".join(f"line {number}" for number in range(30))
    shown = plain(diff_lines(difference(before, before.replace("line 20", "line twenty")), 80))
    assert "  -line 20" in shown
    assert "  +line twenty" in shown
    assert "   line 17" in shown
    assert not any("line 3" in text for text in shown)
    long = "\n".join(f"a {number}" for number in range(50_000))
    assert plain(diff_lines(difference(long, long.replace("a", "b")), 80))[0] == "  - 50,000 lines"


def test_a_body_is_wrapped_and_not_cut() -> None:
    assert plain(excerpt_lines(["abcdefghijkl"], 10)) == ["  abcdefgh", "  ijkl"]
    assert plain(excerpt_lines(["ééééééé漢漢"], 10)) == ["  ééééééé", "  漢漢"]


def test_what_is_shown_of_a_difference_or_a_reason_does_not_grow_with_it() -> None:
    before = "\n".join("漢" * 500 for _ in range(2000))
    shown = diff_lines(difference(before, before.replace("漢", "字")), 80)
    assert len(shown) < 2000
    assert "more lines of the difference" in plain(shown)[-1]
    assert len(reason_lines("漢" * 1000 + "\n" + "漢" * 1_000_000, 80)) < 2000


@pytest.mark.parametrize("text", ["", "soon", "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59-12:00"])
def test_what_is_no_instant_is_none(text: str) -> None:
    found = instant(text)
    assert found is None or found > 0


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("code=x age>30d", DeadLetterFilter(where="code=x", failed_before=DAYS)),
        ("age<30d", DeadLetterFilter(failed_before=NOW + 1, failed_after=DAYS)),
        ("!age>30d", DeadLetterFilter(failed_before=NOW + 1, failed_after=DAYS - 1)),
        ("!age<30d", DeadLetterFilter(failed_before=DAYS + 1)),
        ("age>30d age>1d age<90d", DeadLetterFilter(failed_before=DAYS, failed_after=NOW - 90 * DAY)),
        ("  code=x", DeadLetterFilter(where="  code=x", failed_before=NOW + 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ages_are_instants_from_when_a_choice_was_made_however_late_it_is_judged(
    where: str, meant: DeadLetterFilter
) -> None:
    assert LetterSelection(where=where, asked_ms=NOW, until_ms=NOW)._filter() == meant


def test_what_was_acted_on_is_unmarked_and_nothing_else() -> None:
    marks = MarkedKeys({"A/h", "B/h"})
    done = selection_of(marks, "", None)
    assert done is not None
    marks.toggle("C/h")  # meanwhile
    marks.unmark_done(LetterSelection(where="code=x"), "code=x")
    marks.unmark_done(done, "")
    assert set(marks) == {"C/h"}

    marks.mark_everything()
    marks.unmark_done(done, "code=x")
    assert marks.everything
    done = selection_of(marks, "code=x", None)
    assert done is not None
    marks.unmark_done(done, "code=y")
    assert marks.everything
    marks.unmark_done(done, "code=x")
    assert not marks


def test_a_replay_that_was_under_way_and_is_no_more_was_interrupted() -> None:
    seen = {"A": ReplayOutcome(state="running", total=50, delivered=10, failed=2, skipped=1)}
    assert interrupted(seen, {}) == "a replay of 50 was interrupted at 13: P plans the rest"
    assert interrupted(seen, seen) is None
    assert interrupted({}, seen) is None

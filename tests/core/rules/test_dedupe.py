"""Dedupe: a table of the newest outcomes, by sender and dedupe id."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.results import PublishResult
from relay_core.rules.dedupe import Dedupe, dedupe_key


def outcome(number: int) -> PublishResult:
    return PublishResult(message_id=f"{number}", delivered_to=1)


@given(st.integers(0, 20), st.lists(st.integers(0, 30)))
def test_the_newest_outcomes_are_remembered_up_to_the_limit(limit: int, numbers: list[int]) -> None:
    dedupe = Dedupe(limit)
    for number in numbers:
        dedupe.remember(str(number), outcome(number))
        assert len(dedupe) <= limit
    if limit and numbers:
        assert str(numbers[-1]) in dedupe
        assert dedupe.get(str(numbers[-1])) == outcome(numbers[-1])


def test_the_oldest_outcome_is_forgotten_first() -> None:
    dedupe = Dedupe(2)
    for number in range(3):
        dedupe.remember(str(number), outcome(number))
    assert [dedupe.get(key) for key in "012"] == [None, outcome(1), outcome(2)]


def test_a_later_outcome_replaces_the_first() -> None:
    dedupe = Dedupe(2)
    for number in (1, 2):
        dedupe.remember("k", outcome(number))
    assert (dedupe.get("k"), len(dedupe)) == (outcome(2), 1)


@given(
    st.text(st.characters(exclude_characters=" ")), st.text(), st.text(st.characters(exclude_characters=" ")), st.text()
)
def test_keys_of_different_senders_or_ids_differ(sender: str, id: str, other: str, other_id: str) -> None:
    assert (dedupe_key(sender, id) == dedupe_key(other, other_id)) == ((sender, id) == (other, other_id))

"""The trie finds what `matches_pattern` would find by trying everything."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from relay_core.messages.subjects import is_pattern, matches_pattern
from relay_core.messages.trie import SubjectTrie

TOKENS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]) or "*",
    st.lists(st.one_of(TOKENS, st.just("*")), max_size=4),
    st.sampled_from([[], [">"]]),
)


class TrieAgainstList(RuleBasedStateMachine):
    """A list of (pattern, value) pairs, tried one by one, is the reference."""

    def __init__(self) -> None:
        super().__init__()
        self.trie: SubjectTrie[int] = SubjectTrie()
        self.pairs: list[tuple[str, int]] = []

    @rule(pattern=st.one_of(SUBJECTS, PATTERNS), value=st.integers(0, 3))
    def add(self, pattern: str, value: int) -> None:
        self.trie.add(pattern, value)
        self.pairs.append((pattern, value))

    @rule(pattern=st.one_of(SUBJECTS, PATTERNS), value=st.integers(0, 3))
    def remove_whatever(self, pattern: str, value: int) -> None:
        there = (pattern, value) in self.pairs
        assert self.trie.remove(pattern, value) is there
        if there:
            self.pairs.remove((pattern, value))

    @rule(data=st.data())
    def remove_one_of_ours(self, data: st.DataObject) -> None:
        if self.pairs:
            self.remove_whatever(*data.draw(st.sampled_from(self.pairs)))

    @rule(subject=SUBJECTS)
    def match(self, subject: str) -> None:
        expected = [value for pattern, value in self.pairs if matches_pattern(subject, pattern)]
        assert sorted(self.trie.match(subject)) == sorted(expected)

    @rule(pattern=st.one_of(SUBJECTS, PATTERNS))
    def select(self, pattern: str) -> None:
        literals = [(subject, value) for subject, value in self.pairs if not is_pattern(subject)]
        expected = [value for subject, value in literals if matches_pattern(subject, pattern)]
        assert sorted(self.trie.select(pattern)) == sorted(expected)

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.trie) == len(self.pairs)
        assert sorted(self.trie.items()) == sorted(self.pairs)
        assert sorted(self.trie) == sorted(value for _, value in self.pairs)


TestTrieAgainstList = TrieAgainstList.TestCase


def shape(trie: SubjectTrie[Any]) -> int:
    """Count the levels below the root, whatever they hold."""
    levels, count = [trie._root], 0
    while levels:
        children = [child for _, child in levels.pop().children()]
        count += len(children)
        levels += children
    return count


@given(st.lists(st.one_of(SUBJECTS, PATTERNS), max_size=10), st.randoms())
def test_removing_everything_leaves_no_branch(patterns: list[str], random: Any) -> None:
    trie: SubjectTrie[int] = SubjectTrie()
    for pattern in patterns:
        trie.add(pattern, 1)
    random.shuffle(patterns)
    for pattern in patterns:
        assert trie.remove(pattern, 1)
    assert shape(trie) == 0


def test_pruning_stops_at_what_is_still_used() -> None:
    trie: SubjectTrie[int] = SubjectTrie()
    trie.add("a.b", 1)
    trie.add("a.b.c.d", 2)
    trie.remove("a.b.c.d", 2)
    assert trie.match("a.b") == [1]
    assert shape(trie) == 2


def test_values_of_one_pattern_keep_their_order_and_their_number() -> None:
    trie: SubjectTrie[str] = SubjectTrie()
    for value in ("second", "first", "second"):
        trie.add("a.*", value)
    assert trie.match("a.b") == ["second", "first", "second"]
    assert trie.remove("a.*", "second")
    assert trie.match("a.b") == ["first", "second"]


def test_a_result_is_the_callers_own_list() -> None:
    trie: SubjectTrie[int] = SubjectTrie()
    trie.add("a", 1)
    trie.add(">", 2)
    trie.match("a").clear()
    trie.select("a").clear()
    assert sorted(trie.match("a")) == [1, 2]


def test_values_may_be_falsy_and_unhashable() -> None:
    trie: SubjectTrie[list[int]] = SubjectTrie()
    trie.add("a.b", [])
    assert trie.match("a.b") == [[]]
    assert trie.select("*.b") == [[]]

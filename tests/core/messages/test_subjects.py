"""Subjects and patterns: what is a name, and which names a pattern means."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.errors import InvalidSubject
from relay_core.messages.subjects import (
    MAX_LENGTH,
    MAX_TOKENS,
    is_pattern,
    matches_pattern,
    pattern_covers,
    subject_hash,
    validate_subject,
)

TOKENS = st.sampled_from(["a", "b", "A", "a-b"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]) or ">",
    st.lists(st.one_of(TOKENS, st.just("*")), max_size=4),
    st.sampled_from([[], [">"]]),
)

VALID = ["a", "relay.agent.a", "relay.agent.my-project.back_end", "0.1.2", "-", "_", "A.a"]
INVALID = [
    pytest.param("", "must not be empty", id="empty"),
    pytest.param(".", "empty token", id="only-a-dot"),
    pytest.param(".a", "empty token", id="leading-dot"),
    pytest.param("a.", "empty token", id="trailing-dot"),
    pytest.param("a..b", "empty token", id="double-dot"),
    pytest.param("a b", "'a b'", id="space"),
    pytest.param("a.b\n", "only letters", id="trailing-newline"),
    pytest.param("a\tb", "only letters", id="tab"),
    pytest.param("a/b", "'a/b'", id="slash"),
    pytest.param("a.\u00e9", "only letters", id="non-ascii"),
    pytest.param("a.\u0661", "only letters", id="non-ascii-digit"),
    pytest.param("a.\x00", "only letters", id="nul"),
    pytest.param("a*", "'a*'", id="star-in-token"),
    pytest.param("a.>b", "'>b'", id="rest-in-token"),
]


def accepts(subject: str, *, allow_wildcards: bool) -> bool:
    try:
        validate_subject(subject, allow_wildcards=allow_wildcards)
    except InvalidSubject:
        return False
    return True


@pytest.mark.parametrize("subject", VALID)
def test_a_valid_subject_passes_with_and_without_wildcards(subject: str) -> None:
    validate_subject(subject)
    validate_subject(subject, allow_wildcards=True)


@pytest.mark.parametrize("allow_wildcards", [False, True], ids=["subject", "pattern"])
@pytest.mark.parametrize(("subject", "says"), INVALID)
def test_an_invalid_subject_is_refused_and_named(subject: str, says: str, allow_wildcards: bool) -> None:
    with pytest.raises(InvalidSubject) as caught:
        validate_subject(subject, allow_wildcards=allow_wildcards)
    assert says in str(caught.value)
    assert caught.value.subject == subject


@pytest.mark.parametrize("pattern", ["*", ">", "a.*", "a.>", "*.*.>", "a.*.b"])
def test_wildcards_pass_only_where_they_are_allowed(pattern: str) -> None:
    validate_subject(pattern, allow_wildcards=True)
    with pytest.raises(InvalidSubject, match="must not contain the wildcard"):
        validate_subject(pattern)


@pytest.mark.parametrize("pattern", [">.a", "a.>.b", ">.>"])
def test_rest_must_be_the_last_token(pattern: str) -> None:
    with pytest.raises(InvalidSubject, match="must be the last token"):
        validate_subject(pattern, allow_wildcards=True)


@pytest.mark.parametrize("not_text", [None, 1, b"a", ["a"]], ids=repr)
def test_a_subject_must_be_text(not_text: object) -> None:
    with pytest.raises(InvalidSubject, match="must be text"):
        validate_subject(not_text)  # type: ignore[arg-type]


@pytest.mark.parametrize("last", ["a", "*", ">"])
def test_limits_are_inclusive(last: str) -> None:
    most_tokens = ".".join(["a"] * (MAX_TOKENS - 1) + [last])
    longest = "a" * (MAX_LENGTH - 2) + "." + last
    for subject in (most_tokens, longest):
        assert accepts(subject, allow_wildcards=True)
        assert not accepts("a." + subject, allow_wildcards=True)


@given(st.text(alphabet="ab.*>-_ \n", max_size=8), st.booleans())
def test_validation_agrees_with_the_rules_read_literally(subject: str, allow_wildcards: bool) -> None:
    tokens = subject.split(".")
    allowed = all(
        re.fullmatch(r"[A-Za-z0-9_-]+", token)
        or (allow_wildcards and (token == "*" or (token == ">" and at == len(tokens) - 1)))
        for at, token in enumerate(tokens)
    )
    assert accepts(subject, allow_wildcards=allow_wildcards) == allowed


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.B", False),
        ("a.b", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a.b.c.d", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.>", "a", False),
        ("*", "a", True),
        ("ab", "a", False),
    ],
)
def test_matching(pattern: str, subject: str, expected: bool) -> None:
    assert matches_pattern(subject, pattern) is expected


def as_regex(pattern: str) -> str:
    parts = {"*": r"[^.]+", ">": r"[^.]+(?:\.[^.]+)*"}
    return r"\.".join(parts.get(token, re.escape(token)) for token in pattern.split("."))


@given(SUBJECTS, PATTERNS)
def test_matching_agrees_with_a_regular_expression(subject: str, pattern: str) -> None:
    assert matches_pattern(subject, pattern) == bool(re.fullmatch(as_regex(pattern), subject))


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.*", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.*", True),
        ("a.>", "a.>", True),
        ("a.>", "a.b.>", True),
        ("a.>", "a", False),
        ("a.b.>", "a.>", False),
        ("*.>", "a.>", True),
        ("*.>", ">", False),
        (">", "*", True),
        (">", ">", True),
        ("*", ">", False),
    ],
)
def test_covering(outer: str, inner: str, expected: bool) -> None:
    assert pattern_covers(outer, inner) is expected


@given(PATTERNS | SUBJECTS, PATTERNS | SUBJECTS, SUBJECTS)
def test_what_a_covered_pattern_matches_its_cover_matches_too(outer: str, inner: str, subject: str) -> None:
    if pattern_covers(outer, inner) and matches_pattern(subject, inner):
        assert matches_pattern(subject, outer)


@given(PATTERNS | SUBJECTS, PATTERNS | SUBJECTS)
def test_a_pattern_that_is_not_covered_matches_a_subject_that_its_cover_does_not(outer: str, inner: str) -> None:
    # "z" is in no pattern, so only wildcards match it; up to six of them are longer than any pattern here.
    filled = [inner.replace("*", "z").replace(">", ".".join(["z"] * rest)) for rest in range(1, 7)]
    assert all(matches_pattern(subject, inner) for subject in filled)
    assert pattern_covers(outer, inner) == all(matches_pattern(subject, outer) for subject in filled)


@given(PATTERNS)
def test_a_pattern_is_what_has_wildcards(pattern: str) -> None:
    assert is_pattern(pattern) == (not accepts(pattern, allow_wildcards=False))


def test_the_hash_names_a_directory() -> None:
    # `printf relay.agent.a | sha256sum | cut -c1-12`: a change would orphan every mailbox on disk.
    assert subject_hash("relay.agent.a") == "13290fa42970"

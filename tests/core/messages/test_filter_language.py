"""The language of filters: what is typed means one thing, can be written down again, and mistakes are shown."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.messages.filter_language import BODY, FIELDS, MAX_TERMS, FilterError, Term, parse_filter, render_filter

HOUR = 3_600_000

MEANINGS = {
    "": (),
    "   ": (),
    "reason=timeout": (Term("reason", "=", "timeout"),),
    "reason~time": (Term("reason", "~", "time"),),
    "code=timeout": (Term("code", "=", "timeout"),),
    "to=relay.agent.*": (Term("to", "=", "relay.agent.*"),),
    "TO~agent": (Term("to", "~", "agent"),),
    "from=relay.>": (Term("from", "=", "relay.>"),),
    "subject~x": (Term("subject", "~", "x"),),
    "id=01ABC/0a1b": (Term("id", "=", "01ABC/0a1b"),),
    "age>1h": (Term("age", ">", HOUR),),
    "age<90s": (Term("age", "<", 90_000),),
    "age<1.5h": (Term("age", "<", 90 * 60_000),),
    "replays>0": (Term("replays", ">", 0),),
    "replays=2": (Term("replays", "=", 2),),
    "!code=x": (Term("code", "=", "x", True),),
    "word": (Term(BODY, "~", "word"),),
    "!word": (Term(BODY, "~", "word", True),),
    '"two words"': (Term(BODY, "~", "two words"),),
    '!"two words"': (Term(BODY, "~", "two words", True),),
    r'"say \"hi\" \\ bye"': (Term(BODY, "~", r'say "hi" \ bye'),),
    'reason~"not found"': (Term("reason", "~", "not found"),),
    "code==": (Term("code", "=", "="),),
    "!!": (Term(BODY, "~", "!", True),),
    '"code=x"': (Term(BODY, "~", "code=x"),),
    "12=3": (Term(BODY, "~", "12=3"),),
    "  a\tcode~b  !age>1d ": (Term(BODY, "~", "a"), Term("code", "~", "b"), Term("age", ">", 24 * HOUR, True)),
}


@pytest.mark.parametrize(("text", "terms"), MEANINGS.items(), ids=MEANINGS)
def test_what_an_operator_types_is_terms(text: str, terms: tuple[Term, ...]) -> None:
    assert parse_filter(text) == terms


MISTAKES = {
    "colour=red": (0, "no field 'colour': the fields are reason, code, to, from, subject, id, age, replays"),
    "a !colour~red": (3, "no field 'colour'"),
    "code>x": (4, "'code' does not accept '>': write code= or code~"),
    "age=1h": (3, "'age' does not accept '=': write age< or age>"),
    "replays~1": (7, "write replays< or replays> or replays="),
    "age>soon": (4, "'soon' is not an age: write it like 90s, 10m, 2h or 7d"),
    "age>1y": (4, "'1y' is not an age"),
    "replays>many": (8, "'many' is not a number: write it like replays>0"),
    "replays>-1": (8, "'-1' is not a number"),
    "partial=maybe": (8, "'maybe' is neither yes nor no: write partial=yes or partial=no"),
    "partial~yes": (7, "write partial="),
    "code=": (5, "nothing follows code=: write a text"),
    "code= x": (5, "nothing follows code="),
    "!": (0, "nothing follows '!': write the term directly after it"),
    "x ! y": (2, "nothing follows '!'"),
    '"open': (0, "the quote is not closed"),
    'reason~"open \\" still': (7, "the quote is not closed"),
    r'"bad \n escape"': (0, "the quote is not closed"),
    '""': (0, "the quotes are empty"),
    'code=""': (5, "the quotes are empty"),
    'wo"rd': (2, "a quote in the middle of a word"),
    '"a"b': (3, "a quoted text ends at its quote"),
}


@pytest.mark.parametrize(("text", "position", "says"), [(text, *why) for text, why in MISTAKES.items()], ids=MISTAKES)
def test_a_mistake_is_shown_where_it_is_with_what_would_be_right(text: str, position: int, says: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert caught.value.position == position
    assert says in str(caught.value)
    assert str(caught.value).endswith(f"(at character {position + 1})")


TEXTS = st.text(min_size=1, max_size=12) | st.sampled_from(["!a", 'a"b', "a\\", "code=x", "a b", "!", '"', "age>1h"])
AGES = st.builds(operator.mul, st.integers(0, 10**6), st.sampled_from([1, 1000, 60_000, HOUR, 24 * HOUR]))
TERMS = st.one_of(
    st.builds(Term, st.just(BODY), st.just("~"), TEXTS, st.booleans()),
    st.builds(
        Term,
        st.sampled_from([field for field, ops in FIELDS.items() if ops == "=~"]),
        st.sampled_from("=~"),
        TEXTS,
        st.booleans(),
    ),
    st.builds(Term, st.just("partial"), st.just("="), st.sampled_from(["yes", "no"]), st.booleans()),
    st.builds(Term, st.just("age"), st.sampled_from("<>"), AGES, st.booleans()),
    st.builds(Term, st.just("replays"), st.sampled_from("<>="), st.integers(0, 10**8), st.booleans()),
)


@given(st.lists(TERMS, max_size=5))
def test_terms_written_down_are_read_as_the_same_terms(terms: list[Term]) -> None:
    assert parse_filter(render_filter(terms)) == tuple(terms)


def test_a_filter_has_a_bound_but_for_its_ids() -> None:
    assert len(parse_filter("a " * MAX_TERMS + "!id=x " * 5000 + "id=y")) == MAX_TERMS + 5001
    with pytest.raises(FilterError, match="more than 200 terms") as caught:
        parse_filter("a " * MAX_TERMS + "code=x")
    assert caught.value.position == 2 * MAX_TERMS


@given(st.text(max_size=30) | st.text('!"\\ =~<>acodegr1h', max_size=30))
def test_any_text_is_terms_or_a_mistake_inside_it(text: str) -> None:
    try:
        terms = parse_filter(text)
    except FilterError as error:
        at = error.position
    else:
        assert parse_filter(render_filter(terms)) == terms
        at = 0
    assert 0 <= at <= len(text)

"""Selections: the index and the files select the same dead letters, whatever the filter."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.clock import iso, parse_iso
from relay_core.messages.dead_letter import (
    Code,
    DeadLetter,
    DeadLetterFilter,
    clean_reason,
    damaged_letter,
    dead_delivery,
)
from relay_core.messages.envelope import Budget, Envelope
from relay_core.messages.filter_language import BODY, FAILED, MAX_TERMS, Term
from relay_core.messages.ids import UlidFactory
from relay_core.messages.subjects import subject_hash
from relay_core.records.queries import count_dead_letters, dead_letter_keys, dead_letter_page
from relay_core.records.rows import write_deliveries
from relay_core.records.schema import connect, migrate
from relay_core.records.selection import Selection
from relay_core.testing import FakeClock

NOW = 1_700_000_000_000
IDS = [f"01HF7YAT0A8CDKSYBCF7B200{n:02}" for n in range(6)]
SUBJECTS = ["relay.agent.a", "relay.agent.b", "relay.Agent.a", "relay.agent.a.b", "relay", "a.x.c.d", "a.b.x.c.d"]
TEXTS = ["a", "A", "ä", "Ä", "K", "\N{KELVIN SIGN}", "%", "_", "\\", "'", "[a]", "?", "\N{LATIN SMALL LETTER SHARP S}"]
PATTERNS = [
    "relay.*",
    "relay.agent.*",
    "relay.>",
    ">",
    "*",
    "*.*.a",
    "a.*.c.>",
    "relay.*.a.>",
    "*.>",
    "relay.>.a",
    "[a].*",
]

texts = st.sampled_from(TEXTS) | st.text(max_size=4)
reasons = st.lists(texts, max_size=4).map("".join).map(clean_reason)
codes = st.sampled_from([Code.MALFORMED, Code.TIMEOUT, "Timeout"])
times = st.integers(NOW - 3, NOW + 3)


def made(
    message_id: str, mailbox: str, sender: str, reason: str, code: str, failed_ms: int, replays: int
) -> DeadLetter:
    budget = Budget(hop_count=1, max_hops=5, ancestor_chain=(), ttl=NOW, call_budget_remaining=7)
    envelope = Envelope(
        id=message_id,
        subject=mailbox,
        sender=sender or "nobody",
        budget=budget,
        created_at=iso(NOW),
        payload={"content": reason},
    )
    return DeadLetter(
        message_id=message_id,
        envelope=envelope if sender else None,
        reason=reason,
        code=code,
        failed_at=iso(failed_ms),
        endpoint_hash=subject_hash(mailbox),
        replays=replays,
    )


letters = st.builds(
    made,
    st.sampled_from(IDS),
    st.sampled_from(SUBJECTS),
    st.sampled_from([*SUBJECTS, ""]),
    reasons,
    codes,
    times,
    st.integers(0, 2),
)
wanted_texts = st.one_of(texts, codes, st.sampled_from([*SUBJECTS, *PATTERNS, *map(subject_hash, SUBJECTS)]))
in_columns = st.one_of(
    st.builds(Term, st.sampled_from(["reason", "code"]), st.sampled_from("=~"), wanted_texts, st.booleans()),
    st.builds(Term, st.sampled_from(["to", "from", "subject"]), st.sampled_from("=~"), wanted_texts, st.booleans()),
    st.builds(
        Term,
        st.just("id"),
        st.sampled_from("=~"),
        st.sampled_from([*IDS, f"{IDS[0]}/{subject_hash(SUBJECTS[0])}", "b2000", "01HF7"]),
        st.booleans(),
    ),
    st.builds(Term, st.just(FAILED), st.sampled_from("<>"), times, st.booleans()),
    st.builds(Term, st.just("replays"), st.sampled_from("<>="), st.integers(0, 2), st.booleans()),
)
in_bodies = st.builds(Term, st.just(BODY), st.just("~"), texts, st.booleans())
some_ids = st.none() | st.frozensets(st.sampled_from([*IDS, f"{IDS[0]}/{subject_hash(SUBJECTS[0])}"]))


def selections(terms: st.SearchStrategy[Term]) -> st.SearchStrategy[Selection]:
    return st.builds(
        Selection, st.lists(terms, max_size=3).map(tuple), some_ids, st.booleans(), some_ids, st.none() | times
    )


def subject_of(letter: DeadLetter) -> str:
    return next(subject for subject in SUBJECTS if subject_hash(subject) == letter.endpoint_hash)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    db = connect(":memory:")
    migrate(db)
    yield db
    db.close()


def fill(db: sqlite3.Connection, found: list[DeadLetter]) -> dict[tuple[str, str], DeadLetter]:
    """Write the rows that a dead letter has in the index."""
    db.execute("DELETE FROM deliveries")
    by_key = {(letter.message_id, letter.endpoint_hash): letter for letter in found}
    for letter in by_key.values():
        delivery = dead_delivery(
            letter,
            target=letter.endpoint_hash,
            kind="endpoint",
            target_subject=subject_of(letter),
            status="failed" if letter.replays else "no_subscriber",
        )
        delivery.handled_ms = parse_iso(letter.failed_at) + 0.7  # the index is finer than the record
        write_deliveries(db, [delivery])
    return by_key


def accepted(meant: Selection, by_key: dict[tuple[str, str], DeadLetter]) -> list[tuple[str, str]]:
    return sorted(
        key for key, letter in by_key.items() if meant.accepts(letter, subject_of(letter), parse_iso(letter.failed_at))
    )


@given(st.lists(letters, max_size=6), selections(in_columns))
def test_the_index_selects_what_the_files_do(
    database: sqlite3.Connection, found: list[DeadLetter], meant: Selection
) -> None:
    expected = accepted(meant, by_key := fill(database, found))
    assert not meant.needs_files
    page = dead_letter_page(database, meant, after=None, limit=100)
    assert [(row.message_id, row.endpoint_hash) for row in page] == expected[::-1]
    assert count_dead_letters(database, meant) == len(expected)
    assert dead_letter_keys(database, meant) == expected
    for letter in by_key.values():
        key = (letter.message_id, letter.endpoint_hash)
        assert meant.accepts_mailbox(subject_of(letter), letter.endpoint_hash) or key not in expected


@pytest.mark.parametrize("field", ["reason", "code", "to", "from", "subject"])
def test_no_text_means_more_to_the_index_than_to_the_files(database: sqlite3.Connection, field: str) -> None:
    """LIKE, GLOB and lower case have their own ideas of some characters: hold each to each."""
    ids = UlidFactory(FakeClock())
    found = [made(ids(), SUBJECTS[n % 7], SUBJECTS[-n % 7], f"x{one}y", one, NOW, 0) for n, one in enumerate(TEXTS * 2)]
    by_key = fill(database, found)
    for value in (*TEXTS, *PATTERNS, *SUBJECTS, "xay", "XKY", "100%", "x_y", "nt.a"):
        for op in "=~":
            meant = Selection((Term(field, op, value),))
            assert dead_letter_keys(database, meant) == accepted(meant, by_key), meant


@given(st.lists(letters, max_size=6), selections(in_columns | in_bodies))
def test_where_a_body_is_asked_for_the_index_leaves_nothing_out(
    database: sqlite3.Connection, found: list[DeadLetter], meant: Selection
) -> None:
    expected = accepted(meant, fill(database, found))
    assert set(expected) <= set(dead_letter_keys(database, meant))


@given(selections(in_columns | in_bodies), st.sampled_from(IDS), st.sampled_from(SUBJECTS), st.text(max_size=5))
def test_no_damaged_record_is_meant_where_a_selection_says_so(
    meant: Selection, message_id: str, subject: str, problem: str
) -> None:
    letter = damaged_letter(message_id, subject_hash(subject), ValueError(problem))
    if not meant.can_be_damaged:
        assert not meant.accepts(letter, subject, parse_iso(letter.failed_at))


SOUND = {
    "code=timeout": True,
    "code=malformed": False,
    "!code=timeout": False,
    "from~a": True,
    "!from~a": False,
    "reason=timeout": True,
    "reason~damaged": False,
    "replays>0": True,
    "word": True,
    "!word": False,
    "to~a": False,
    "age>1h": False,
    "to~a code=cycle": True,
}


@pytest.mark.parametrize(("where", "sound"), SOUND.items(), ids=SOUND)
def test_the_index_says_where_to_look_only_if_no_damaged_record_is_meant(where: str, sound: bool) -> None:
    meant = Selection.of(DeadLetterFilter(where=where), NOW)
    assert meant.can_be_damaged is not sound


@pytest.mark.parametrize(
    ("where", "failed_ms", "expected"),
    [
        ("age>1m", NOW - 60_001, True),
        ("age>1m", NOW - 60_000, False),
        ("age<1m", NOW - 59_999, True),
        ("age<1m", NOW - 60_000, False),
    ],
)
def test_an_age_is_counted_back_from_now(where: str, failed_ms: int, expected: bool) -> None:
    letter = made(IDS[0], SUBJECTS[0], SUBJECTS[1], "r", Code.TIMEOUT, failed_ms, 0)
    assert Selection.of(DeadLetterFilter(where=where), NOW).accepts(letter, SUBJECTS[0], failed_ms) is expected


def test_a_text_is_found_in_any_case() -> None:
    letter = made(IDS[0], SUBJECTS[0], SUBJECTS[1], "Größe ÜBER Limit", Code.TIMEOUT, NOW, 0)
    for where in ("reason~limit", "reason~größe", "reason~GRÖSSE", "LIMIT", "über", "to~AGENT", "reason~TIMEOUT"):
        expected = where != "reason~GRÖSSE"  # a sharp s has no other case of one letter
        assert Selection.of(DeadLetterFilter(where=where), NOW).accepts(letter, SUBJECTS[0], NOW) is expected


MANY = {
    "other ids": " ".join(f"!id={id}" for id in (*map(str, range(5000)), IDS[0])),
    "the same id": " ".join([f"id={IDS[1]}"] * 5000),
    "two names": f"id={IDS[1]} id={IDS[1]}/{subject_hash(SUBJECTS[0])}",
    "too many names": " ".join(f"id={id}" for id in IDS[:3]),
    "as many terms as may be": "!to~nowhere " * MAX_TERMS,
    "the longest age": "age<1000000000000s",
    "beyond the longest age": "age>1000000000000s",
    "a long text": f"reason~{'r' * 5000}",
}


@pytest.mark.parametrize("exclude", [False, True], ids=["meant", "turned round"])
@pytest.mark.parametrize("where", MANY.values(), ids=MANY)
def test_the_index_can_be_asked_for_anything_that_can_be_typed(
    database: sqlite3.Connection, where: str, exclude: bool
) -> None:
    found = [made(id, SUBJECTS[0], SUBJECTS[1], "r", Code.TIMEOUT, NOW, 0) for id in IDS]
    by_key = fill(database, found)
    meant = Selection.of(DeadLetterFilter(where=where, exclude=exclude), NOW)
    assert dead_letter_keys(database, meant) == accepted(meant, by_key)


def test_a_long_body_is_compared_to_its_end() -> None:
    letter = made(IDS[0], SUBJECTS[0], SUBJECTS[1], "r", Code.TIMEOUT, NOW, 0)
    assert letter.envelope is not None
    letter = letter.model_copy(update={"envelope": letter.envelope.model_copy(update={"payload": "x" * 5000})})
    for text, expected in (("x" * 5000, True), ("x" * 4999 + "y", False)):
        assert Selection.of(DeadLetterFilter(text=text), NOW).accepts(letter, SUBJECTS[0], NOW) is expected

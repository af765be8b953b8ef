"""Tokens: what they are good for, what the file gives away (nothing), and that a doubtful file opens no door."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_core.errors import ConfigError, InvalidSubject, NotFound, StorageError
from relay_core.messages.subjects import matches_pattern
from relay_core.testing import FakeClock
from relay_supervisor.server.tokens import Tokens, _overlap, write_operator_token

SECRET = "relay_" + "s" * 43
ENTRY = {
    "id": "0a1b2c3d",
    "pattern": "relay.agent.a",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "sha256": sha256(SECRET.encode()).hexdigest(),
}


@pytest.fixture
def path(data_dir: Path) -> Path:
    return data_dir / "tokens.json"


def write(path: Path, content: bytes | object, mode: int = 0o600) -> None:
    path.write_bytes(content if isinstance(content, bytes) else orjson.dumps(content))
    path.chmod(mode)


def loaded(path: Path) -> Tokens:
    tokens = Tokens(path, FakeClock())
    tokens.load()
    return tokens


# Making and checking tokens


def test_a_token_is_good_for_its_pattern_here_and_after_a_restart(path: Path) -> None:
    tokens = loaded(path)
    info, token = tokens.add("relay.agent.>", note="for the agents")
    assert (info.pattern, info.note, info.created_at) == ("relay.agent.>", "for the agents", "2023-11-14T22:13:20.000Z")
    assert tokens.check(token) == loaded(path).check(token) == info
    assert tokens.list() == loaded(path).list() == [info]


def test_a_token_is_a_long_random_word_that_begins_with_relay(path: Path) -> None:
    tokens = loaded(path)
    made = [tokens.add("a") for _ in range(5)]
    assert len({token for _, token in made}) == len({info.id for info, _ in made}) == 5
    for _, token in made:
        assert token.startswith("relay_")
        assert len(token) >= len("relay_") + 43  # 32 bytes in base 64


def test_the_file_has_only_the_hash_and_is_private(path: Path) -> None:
    info, token = loaded(path).add("a.*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.removeprefix("relay_").encode() not in path.read_bytes()
    assert orjson.loads(path.read_bytes()) == [
        {
            "id": info.id,
            "pattern": "a.*",
            "createdAt": info.created_at,
            "sha256": sha256(token.encode()).hexdigest(),
        }
    ]
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "x",
        lambda token: token.upper(),
        lambda token: token.removeprefix("relay_"),
        lambda token: sha256(token.encode()).hexdigest(),
        lambda token: token + "\n",
        lambda token: "\ud800",
        lambda token: "é" * 100_000,
    ],
    ids=["empty", "cut", "longer", "case", "no-prefix", "its-hash", "newline", "surrogate", "huge"],
)
def test_anything_else_is_no_token(path: Path, spoil: Callable[[str], str]) -> None:
    tokens = loaded(path)
    _, token = tokens.add("a")
    assert tokens.check(spoil(token)) is None


def test_a_hash_that_is_right_in_its_first_half_only_is_refused(path: Path) -> None:
    digest = str(ENTRY["sha256"])
    write(path, [{**ENTRY, "sha256": digest[:32] + digest[:31:-1]}])
    assert loaded(path).check(SECRET) is None


def test_a_removed_token_is_good_for_nothing(path: Path) -> None:
    tokens = loaded(path)
    kept, kept_token = tokens.add("a")
    gone, gone_token = tokens.add("b")
    tokens.remove(gone.id)
    assert tokens.check(gone_token) is None
    assert tokens.check(kept_token) == kept
    assert (tokens.is_valid(kept), tokens.is_valid(gone)) == (True, False)
    assert loaded(path).list() == [kept]


def test_removing_what_is_not_there_says_so(path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        loaded(path).remove("nothing")
    assert caught.value.what == "nothing"
    assert not path.exists()


@pytest.mark.parametrize("pattern", ["", "a..b", "a.>.b", "a b", "relay.agent.é"])
def test_a_pattern_must_be_one(path: Path, pattern: str) -> None:
    with pytest.raises(InvalidSubject):
        loaded(path).add(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        ">",
        "*.>",
        "relay.>",
        "relay.*.>",
        "relay.system.>",
        "relay.system.supervisor",
        "relay.adapter.telegram",
        "relay.*.telegram",
        "*.*.*",
        "*.adapter.>",
        "relay.system.jobs.*",
    ],
)
def test_a_pattern_that_matches_any_reserved_sender_is_refused(path: Path, pattern: str) -> None:
    with pytest.raises(InvalidSubject, match="reserved") as caught:
        loaded(path).add(pattern)
    assert caught.value.subject == pattern
    assert not path.exists()


@pytest.mark.parametrize("pattern", ["relay.agent.>", "relay.*", "relay.system", "*", "relay.human.*.x", "other.>"])
def test_a_pattern_beside_the_reserved_ones_is_allowed(path: Path, pattern: str) -> None:
    assert loaded(path).add(pattern)[0].pattern == pattern


TOKEN = st.sampled_from(["a", "b", "*"])
PATTERN = st.builds(
    lambda tokens, rest: ".".join([*tokens, *rest]) or ">", st.lists(TOKEN, max_size=3), st.sampled_from([[], [">"]])
)
SUBJECT = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(".".join)


@given(PATTERN, PATTERN, SUBJECT)
def test_patterns_that_share_a_subject_overlap(pattern: str, other: str, subject: str) -> None:
    if matches_pattern(subject, pattern) and matches_pattern(subject, other):
        assert _overlap(pattern, other)


@given(PATTERN, PATTERN)
def test_patterns_that_overlap_share_a_subject(pattern: str, other: str) -> None:
    if _overlap(pattern, other):
        longest = max(pattern, other, key=lambda pattern: pattern.count("."))
        other = pattern if longest == other else other
        tokens = [
            other.split(".")[at] if token in "*>" and at < len(other.split(".")) else token
            for at, token in enumerate(longest.split("."))
        ]
        subject = ".".join(token if token not in "*>" else "a" for token in tokens)
        assert matches_pattern(subject, pattern)
        assert matches_pattern(subject, longest)


@pytest.mark.parametrize("note", ["a\nb", "\x1b[31mred", "x" * 201], ids=["newline", "escape", "long"])
def test_a_note_is_one_short_line(path: Path, note: str) -> None:
    with pytest.raises(ConfigError, match="a note is one line"):
        loaded(path).add("a", note=note)


def test_many_threads_lose_no_token(path: Path) -> None:
    tokens = loaded(path)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda at: tokens.add(f"a.{at}"), range(16)))
    assert all(loaded(path).check(token) == info for info, token in made)


# A doubtful file


BROKEN: dict[str, Any] = {
    "empty": b"",
    "cut": orjson.dumps([ENTRY])[:-1],
    "an object": {},
    "not objects": ["x"],
    "unknown key": [{**ENTRY, "patern": "a"}],
    "bad pattern": [{**ENTRY, "pattern": "a..b"}],
    "reserved": [{**ENTRY, "pattern": "relay.system.x"}],
    "everything": [{**ENTRY, "pattern": ">"}],
    "no hash": [{key: ENTRY[key] for key in ENTRY if key != "sha256"}],
    "plain secret": [{**ENTRY, "sha256": SECRET}],
    "no pattern": [{key: ENTRY[key] for key in ENTRY if key != "pattern"}],
    "wrong type": [{**ENTRY, "id": 7}],
    "twice": [ENTRY, {**ENTRY, "id": "other"}],
    "same id": [ENTRY, {**ENTRY, "sha256": "0" * 64}],
}


def test_the_sample_of_a_good_file_is_good(path: Path) -> None:
    write(path, [ENTRY])
    assert loaded(path).check(SECRET) is not None


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_makes_no_token_good_and_is_not_overwritten(path: Path, content: object) -> None:
    write(path, [ENTRY])
    tokens = loaded(path)
    write(path, content)
    before = path.read_bytes()
    tokens.load()
    assert tokens.broken is not None
    assert SECRET not in tokens.broken
    assert (tokens.check(SECRET), tokens.list()) == (None, [])
    for change in (lambda: tokens.add("a"), lambda: tokens.remove("0a1b2c3d")):
        with pytest.raises(ConfigError, match="repair the file first") as caught:
            change()
        assert caught.value.path == str(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666], ids=oct)
def test_a_file_that_others_can_read_or_change_is_broken(path: Path, mode: int) -> None:
    write(path, [ENTRY], mode)
    tokens = loaded(path)
    assert "others can read or change it" in (tokens.broken or "")
    assert tokens.check(SECRET) is None


def test_a_link_or_a_pipe_is_no_file_of_tokens(path: Path) -> None:
    real = path.with_name("elsewhere")
    write(real, [ENTRY])
    path.symlink_to(real)
    assert loaded(path).broken is not None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert "not a file" in (loaded(path).broken or "")
    path.unlink()
    path.mkdir(mode=0o700)
    assert loaded(path).broken is not None


def test_a_repaired_file_is_taken_again(path: Path) -> None:
    write(path, b"[")
    tokens = loaded(path)
    write(path, [ENTRY])
    tokens.load()
    assert tokens.broken is None
    assert tokens.check(SECRET) is not None


def test_before_the_first_load_and_without_a_file_no_token_is_good(path: Path) -> None:
    write(path, [ENTRY])
    tokens = Tokens(path, FakeClock())
    assert tokens.check(SECRET) is None
    assert tokens.broken is not None
    tokens.load()
    assert tokens.check(SECRET) is not None
    path.unlink()
    tokens.load()
    assert tokens.check(SECRET) is None
    assert tokens.broken is None


def test_a_change_does_not_undo_an_edit_of_the_file(path: Path) -> None:
    tokens = loaded(path)
    write(path, [ENTRY])
    _, token = tokens.add("b")
    assert tokens.check(SECRET) is not None
    assert tokens.check(token) is not None


def test_a_token_that_cannot_be_written_down_is_not_made(path: Path) -> None:
    tokens = loaded(path)
    path.parent.rmdir()
    with pytest.raises(StorageError):
        tokens.add("a")
    assert tokens.list() == []


# The operator's own


def test_the_operators_token_is_new_at_each_start_and_private(data_dir: Path) -> None:
    path = data_dir / "operator.token"
    first = write_operator_token(path)
    assert path.read_text() == f"{first}\n"
    second = write_operator_token(path)
    assert path.read_text() == f"{second}\n" != f"{first}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(data_dir) == [path.name]

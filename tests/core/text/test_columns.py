"""Text is measured in columns of a terminal."""

from __future__ import annotations

import pytest

from relay_core.text.columns import columns, cut, padded, wrapped


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert columns("abc") == 3
    assert columns("日本") == 4
    assert columns("e\u0301") == columns("\u0b95\u0bcd") == 1  # a letter and its mark
    assert columns("ᄒ\u1161\u11ab") == 2


def test_padding_counts_columns() -> None:
    assert padded("日本", 6) == "日本  "
    assert padded("日本", 6, right=True) == "  日本"


@pytest.mark.parametrize(("text", "shown"), [("abcdef", "abc…"), ("abcd", "abcd"), ("日本語", "日…")])
def test_a_text_is_cut_between_characters(text: str, shown: str) -> None:
    assert cut(text, 4) == shown


def test_a_cut_text_is_never_wider_than_asked() -> None:
    assert all(len(cut("x" * 50, width)) <= width for width in range(1, 60))


WRAPPED: dict[str, tuple[str, list[str]]] = {
    "words": ("one two three", ["one two", "three"]),
    "nothing": ("", [""]),
    "exactly": ("12345678 1", ["12345678", "1"]),
    "a long word": ("abcdefghijkl m", ["abcdefgh", "ijkl m"]),
    "a long word after another": ("ab cdefghijklm", ["ab cdefg", "hijklm"]),
    "wide characters": ("日本語日本語 x", ["日本語日", "本語 x"]),
    "wide characters after a word": ("abc 日本語日本語", ["abc 日本", "語日本語"]),
    "no room for half of one": ("abcdef 日本語日本語", ["abcdef", "日本語日", "本語"]),
}


@pytest.mark.parametrize(("text", "lines"), WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_text_is_as_wide_as_the_terminal_shows_it(text: str, lines: list[str]) -> None:
    assert wrapped(text, 8) == lines
    assert all(columns(line) <= 8 for line in lines)

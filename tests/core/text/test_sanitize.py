"""What a stranger wrote: shown so that no terminal obeys it, and none of it is lost in JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from relay_core.text.sanitize import MAX_MARKS, clean, clean_lines, pretty_json

# mypy's parser fails on the literal.
SURROGATE = chr(0xD800)
# Every code point, surrogates included, with the dangerous ones as likely as the rest.
ODD = "\x00\x07\x08\t\n\r\x1b\x7f\x80\x9b\x9d\u0301\u034f\u061c\u1161\u200b\u200d\u202e\u2028\u2066\u3000\ufe0f"
ODD += SURROGATE + "\ufffe\U0001f3fd\U0001f468\U000e0041\U000f0000\u0b3e❤"
TEXT = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=()), st.sampled_from("[];mab01")))
# JSON cannot carry two surrogates that would read as a pair.
JSON_TEXT = TEXT.filter(lambda text: text == json.loads(json.dumps(text)))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), JSON_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(JSON_TEXT, inner, max_size=4)),
    max_leaves=8,
)


@given(TEXT, st.integers(1, 60))
@example("\u0301" * 50, 20)
@example("\ufe0f" * 500, 20)
@example("\x80\U0001f3fd", 60)
@example("e" + "\u0301" * 3 + "\ufe0f" + "\u0301", 60)
def test_a_cleaned_text_is_printable_of_known_width_bounded_and_clean(text: str, limit: int) -> None:
    shown = clean(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert 0 <= cell_len(shown) <= 2 * len(shown)
    assert clean(shown, limit) == shown


@pytest.mark.parametrize("code", [*range(0x20), *range(0x7F, 0xA0)], ids=hex)
def test_no_control_character_gets_through_and_each_is_seen(code: int) -> None:
    shown = clean(f"a{chr(code)}b")
    assert shown.isprintable()
    assert (shown[0], shown[-1]) == ("a", "b")
    assert cell_len(shown) > 2


def test_every_code_point_by_itself_is_printable_and_seen() -> None:
    for code in [*range(0x20000), *range(0xE0000, 0xE1000), sys.maxunicode]:
        shown = clean(chr(code))
        assert shown.isprintable(), hex(code)
        assert cell_len(shown) > 0, hex(code)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain ASCII ~ text", "plain ASCII ~ text", id="ascii"),
        pytest.param("naïve Zoë ñ ß", "naïve Zoë ñ ß", id="accents"),
        pytest.param("Zoe\u0308 n\u0303", "Zoe\u0308 n\u0303", id="accents as combining marks"),
        pytest.param("你好 こんにちは 안녕", "你好 こんにちは 안녕", id="CJK"),
        pytest.param("ᄒ\u1161\u11ab", "ᄒ\u1161\u11ab", id="conjoining Hangul"),
        pytest.param("नमस्ते हिन्दी", "नमस्ते हिन्दी", id="Devanagari"),
        pytest.param("שלום مرحبا", "שלום مرحبا", id="right to left letters"),
        pytest.param("🎉 ✓ ☎", "🎉 ✓ ☎", id="emoji"),
        pytest.param("❤\ufe0f!", "❤!", id="emoji look left out"),
        pytest.param("❤" + "\ufe0f" * 5, "❤‹U+FE0F›‹U+FE0F›", id="a run of looks is seen"),
        pytest.param("👍🏽", "👍", id="skin tone left out"),
        pytest.param("👨\u200d👩\u200d👧", "👨👩👧", id="joined emoji stand apart"),
        pytest.param("a\ufe0fb\u2800", "a‹U+FE0F›b‹U+2800›", id="a selector on a letter and a blank are seen"),
        pytest.param("a\u200db", "a‹U+200D›b", id="a joiner between letters is seen"),
        pytest.param("a\u00a0b\u3000c", "a b c", id="spaces of any kind"),
        pytest.param("[bold]x[/] :smile:", "[bold]x[/] :smile:", id="markup is text"),
        pytest.param("\x1b]52;c;eA==\x07", "␛]52;c;eA==␇", id="an escape sequence"),
        pytest.param("a\nb\r\tc\x7f", "a␊b␍␉c␡", id="control pictures"),
        pytest.param("\x9b2J\x9d0;t\x9c", "‹U+009B›2J‹U+009D›0;t‹U+009C›", id="C1"),
        pytest.param("abc\u202etxt.exe", "abc‹U+202E›txt.exe", id="bidi override"),
        pytest.param("a\u200bb\ufeff", "a‹U+200B›b‹U+FEFF›", id="zero width"),
        pytest.param("a\U000e0041b", "a‹U+E0041›b", id="tag"),
        pytest.param(SURROGATE + "\ue000\ufffe", "‹U+D800›‹U+E000›‹U+FFFE›", id="no characters"),
        pytest.param("\u2028\u2029", "‹U+2028›‹U+2029›", id="line separators"),
        pytest.param("\u0301x", "◌\u0301x", id="a mark with nothing before it"),
        pytest.param("z" + "\u0301" * 9 + "o", "z" + "\u0301" * 3 + "�o", id="zalgo"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("abcde", "abcde", id="fits"),
        pytest.param("abcdef", "abcd…", id="ascii too long"),
        pytest.param("äöüßéè", "äöüß…", id="other too long"),
        pytest.param("ab\x1b" + "x" * 4_000_000, "ab␛x…", id="huge"),
        pytest.param("a" + "\u0301" * 4_000_000, "a\u0301\u0301\u0301…", id="huge zalgo"),
    ],
)
def test_a_long_text_is_cut_with_an_ellipsis(text: str, shown: str) -> None:
    assert clean(text, 5) == shown


def test_plain_text_is_returned_as_it_is() -> None:
    text = "x" * 100
    assert clean(text) is text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("", [""], id="nothing"),
        pytest.param("one\n", ["one"], id="a last newline"),
        pytest.param("one\r\ntwo\x1b[2J", ["one", "two␛[2J"], id="carriage returns before newlines"),
        pytest.param("a\rb", ["a␍b"], id="a carriage return inside"),
        pytest.param("1\n2\n3", ["1", "2", "3"], id="as many as fit"),
        pytest.param("1\n2\n3\n4", ["1", "2", "… 2 more lines"], id="one too many"),
        pytest.param("1\n2\n3\n4\n5\n6\n", ["1", "2", "… 4 more lines"], id="more"),
    ],
)
def test_lines(text: str, lines: list[str]) -> None:
    assert clean_lines(text, 3) == lines


@given(TEXT, st.integers(1, 5), st.integers(2, 20))
def test_lines_are_clean_and_bounded(text: str, limit_lines: int, limit: int) -> None:
    lines = clean_lines(text, limit_lines, limit)
    assert 1 <= len(lines) <= limit_lines
    assert all(line.isprintable() for line in lines)


@given(JSON)
@example({"a\x7f\x9b": [SURROGATE, "👍🏽", "\U000e0041", '"\\', "e\u0301\u0301\u0301\u0301\u0301", "\u0301"]})
def test_pretty_json_is_safe_and_gives_the_payload_back(payload: Any) -> None:
    text = pretty_json(payload)
    assert json.loads(text) == payload
    for line in text.split("\n"):
        assert clean(line, len(line) + 1) == line


def test_pretty_json_reads_well() -> None:
    payload = {"content": "naïve 你好 🎉 \x1b[2J", "n": [1, None]}
    assert pretty_json(payload) == ('{\n  "content": "naïve 你好 🎉 \\u001b[2J",\n  "n": [\n    1,\n    null\n  ]\n}')


def test_marks_in_json_stay_on_a_letter_and_within_the_limit() -> None:
    assert pretty_json("\u0301") == '"\\u0301"'
    assert pretty_json("e" + "\u0301" * 5) == '"e' + "\u0301" * MAX_MARKS + "\\u0301" * 2 + '"'

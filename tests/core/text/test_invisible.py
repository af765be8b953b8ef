"""No character that a person cannot see gets through unescaped."""

from __future__ import annotations

import unicodedata

import pytest

from relay_core.text.invisible import escape_invisible, is_invisible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\x1b[31mb", "a\\x1b[31mb", id="terminal escape"),
        pytest.param("a\x00\x08b", "a\\x00\\x08b", id="controls"),
        pytest.param("a\x9bb", "a\\x9bb", id="C1"),
        pytest.param("a\u202eb", "a\\u202eb", id="direction of writing"),
        pytest.param("a\u200bb\ufeff", "a\\u200bb\\ufeff", id="no width"),
        pytest.param("a\u2028b", "a\\u2028b", id="line separator"),
        pytest.param("".join(chr(0xE0000 + ord(char)) for char in "no"), "\\U000e006e\\U000e006f", id="tags"),
        pytest.param("a\U000e0101", "a\\U000e0101", id="selectors"),
        pytest.param("\u3164", "\\u3164", id="blank letters"),
        pytest.param("\ud800", "\\ud800", id="half a pair"),
        pytest.param("a\r\nb\rc", "a\nb\nc", id="line ends"),
        pytest.param("a\tb\nc", "a\tb\nc", id="tabs and lines stay"),
        pytest.param("👩🚀 ﷺ é 日本 क्ष", "👩🚀 ﷺ é 日本 क्ष", id="what people write stays"),
        pytest.param("👩\u200d🚀 ❤\ufe0f", "👩\\u200d🚀 ❤\\ufe0f", id="joiners and selectors of emoji"),
        pytest.param("a\u00a0b\u3000c", "a\u00a0b\u3000c", id="spaces stay"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown


INVISIBLE = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0x2800, 0x3164, 0xFEFF, 0xFFA0, 0x16FE4, 0x1D159),
    *range(0x180B, 0x1810),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xFFF0, 0xFFF9),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE1000),
]
"""Default_Ignorable_Code_Point of Unicode 16, and what is drawn as nothing."""


def test_no_invisible_character_gets_through() -> None:
    for code in INVISIBLE:
        written = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        assert escape_invisible(f"a{chr(code)}b") == f"a{written}b"
        assert is_invisible(chr(code))


def test_no_format_character_and_no_invisible_joiner_gets_through() -> None:
    formats = [chr(code) for code in range(0xA0, 0x110000) if unicodedata.category(chr(code)) == "Cf"]
    assert len(formats) > 150
    for char in [*formats, "\u2d7f", "\U0001107f"]:
        assert escape_invisible(f"a{char}b").isascii()

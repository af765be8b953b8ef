r"""Characters that occupy a place in a text and show nothing, and untrusted text with all of them written out.

1. Invisible are Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt, Unicode 16: joiners, variation
   selectors, fillers, direction marks, tags, reserved ranges) and some characters that fonts draw blank. A run of them
   carries text that a model reads and a person does not see.
2. `escape_invisible` is for readers that take text literally, such as models: escapes (``\x1b``, ``\u202e``) keep every
   character, and line breaks, tabs and spaces of other widths stay. People get `sanitize.clean` instead.
"""

from __future__ import annotations

_IGNORABLE = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x061C, 0x061C),  # Arabic letter mark
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F),  # Mongolian selectors and vowel separator
    (0x200B, 0x200F),  # zero width space, joiners, direction marks
    (0x202A, 0x202E),  # direction of writing
    (0x2060, 0x206F),  # word joiner, invisible operators, isolates
    (0x3164, 0x3164),  # Hangul filler
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),  # halfwidth Hangul filler
    (0xFFF0, 0xFFF8),  # reserved
    (0x1BCA0, 0x1BCA3),  # shorthand format
    (0x1D173, 0x1D17A),  # musical format
    (0xE0000, 0xE0FFF),  # tags, more variation selectors, reserved
)
_BLANK = (
    (0x2800, 0x2800),  # Braille without dots
    (0x2D7F, 0x2D7F),  # Tifinagh consonant joiner
    (0xFFF9, 0xFFFB),  # interlinear annotation
    (0x1107F, 0x1107F),  # Brahmi number joiner
    (0x13430, 0x1343F),  # joiners of Egyptian hieroglyphs
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x1D159, 0x1D159),  # musical null notehead
)
_RANGES = (*_IGNORABLE, *_BLANK)
_KEPT = "\n\t\u00a0\u2002\u2003\u2009\u202f\u3000"
"""Line breaks, tabs and wide or narrow spaces: not printable to Python, but expected in a text."""


def is_invisible(char: str) -> bool:
    """Return True if a character shows nothing; control characters and spaces do not count."""
    code = ord(char)
    return code >= 0xAD and any(low <= code <= high for low, high in _RANGES)


def escape_invisible(text: str) -> str:
    """Return the text with every control or invisible character escaped, and every line break as a newline."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii() and text.isprintable():
        return text
    escapes = {ord(char): _escape(ord(char)) for char in set(text) if _is_hidden(char)}
    return text.translate(escapes) if escapes else text


def _is_hidden(char: str) -> bool:
    return is_invisible(char) if char.isprintable() else char not in _KEPT


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

"""Characters that take part in a text and show nothing.

Unicode's property Default_Ignorable_Code_Point (DerivedCoreProperties.txt, Unicode 16: joiners, variation selectors,
fillers, direction marks, tags, and what is reserved for more of them), and the characters that are drawn as nothing
although no property says so. Strung together they carry a text that a model reads and a person does not see.

Only the standard library, and little of it: the programs that every prompt of an agent starts import this
(relay_supervisor/shim).
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
    (0x13430, 0x1343F),  # how Egyptian hieroglyphs are joined
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x1D159, 0x1D159),  # musical null notehead
)
_RANGES = (*_IGNORABLE, *_BLANK)


def is_invisible(char: str) -> bool:
    """Tell whether a character shows nothing; controls and spaces are not meant."""
    code = ord(char)
    return code >= 0xAD and any(low <= code <= high for low, high in _RANGES)

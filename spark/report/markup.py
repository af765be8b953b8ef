"""Elements of a page as functions: everything that is not `Markup` already is made harmless and escaped, here alone.

A template engine would be a dependency with the same duty; this is its escaping without its language. Forgetting to
escape is not possible: only `element` and `joined` make `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from relay_core.text.sanitize import clean

_ALONE = frozenset({"meta", "br"})


class Markup(str):
    """A text that is markup and stays as it is."""

    __slots__ = ()


def element(name: str, /, *inside: Any, **attributes: Any) -> Markup:
    """Return an element; names of attributes end in ``_`` where Python has the word, and ``_`` inside is ``-``.

    An attribute that is None or False is left out; one that is True stands alone. What is inside and None is left out.
    """
    given = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _ALONE:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[Any]) -> Markup:
    """Return parts one after the other, texts escaped."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts if part is not None))


def _attribute(key: str, value: Any) -> str:
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escaped(value)}"'


def _escaped(text: Any) -> str:
    return escape(clean(str(text), None))

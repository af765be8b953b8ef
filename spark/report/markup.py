"""Elements of a page as functions. Every text that is not already `Markup` is sanitised and escaped here.

This does the escaping of a template engine without the dependency. Escaping cannot be forgotten: only `element` and
`joined` make `Markup`.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from relay_core.text.sanitize import clean

_VOID = frozenset({"meta", "br"})


class Markup(str):
    """Text that is markup and is not escaped."""

    __slots__ = ()


def element(name: str, /, *inside: Any, **attributes: Any) -> Markup:
    """Return an element. A trailing ``_`` of an attribute's name is dropped, other ``_`` become ``-``.

    Attributes that are None or False and content that is None are omitted; an attribute that is True has no value.
    """
    given = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(inside)}</{name}>")


def joined(parts: Iterable[Any]) -> Markup:
    """Return the parts joined, texts escaped."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts if part is not None))


def _attribute(key: str, value: Any) -> str:
    name = key.removesuffix("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_escaped(value)}"'


def _escaped(text: Any) -> str:
    return escape(clean(str(text), None))

"""What models say of their fields: the text below each attribute, read from the source.

pydantic can do so by itself (`use_attribute_docstrings`), but reads the source of every model whenever it is
imported: a fifth of a second for each run of a command line. Here it is read when documentation is made.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any


def field_texts(model: type[Any]) -> dict[str, str]:
    """Return what a model says of each of its fields, those that it inherits included."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if owner.__module__.startswith("relay_"):
            texts |= _texts_of_module(owner.__module__).get(owner.__name__, {})
    return texts


@cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_texts_of_class(node)) for node in classes}


def _texts_of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for attribute, said in pairwise(node.body):
        match attribute, said:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
